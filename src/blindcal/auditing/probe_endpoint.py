"""Find out whether and how an endpoint can be audited, on a few of the audit's items."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.limits import Limits
from blindcal.asking.run_context import RunContext, blocking
from blindcal.auditing.choice import MethodChoice
from blindcal.auditing.prepare import PILOTS, check_semantics, choose_tokens, probe_sample, probe_sampled
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.tokens import Choice
from blindcal.items.catalogue import open_items
from blindcal.planning.plan import PROBE_QUERIES
from blindcal.probing.findings import Probe, ProbeVerdict
from blindcal.records import Progress
from blindcal.settings import Settings
from blindcal.text import printable


@dataclass(frozen=True, slots=True, repr=False)
class EndpointProbe:
    """What a probe found: the answer tokens, how the endpoint treats them, and which method fits."""

    choice: Choice
    probe: Probe
    methods: MethodChoice | None = None

    @property
    def verdict(self) -> ProbeVerdict:
        """How the endpoint can be audited: by thresholds, by temperature only, or not at all."""
        return self.probe.verdict

    @property
    def reason(self) -> str:
        """The reason for the verdict."""
        return self.probe.reason

    @property
    def queries(self) -> int:
        """Number of queries, including those that chose the tokens."""
        return self.choice.queries + self.probe.queries

    def __repr__(self) -> str:
        return f"EndpointProbe({self.verdict}: {printable(self.reason, 100)}, {self.queries} queries)"


async def _probe(
    items: str | Path,
    settings: Settings,
    *,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> EndpointProbe:
    """Find out with about 170 queries whether and how an endpoint can be audited.

    Parameters
    ----------
    items : path
        The labelled questions (a file or a named set) that the audit would ask; 16 of them are used.
    settings : Settings
        The endpoint, answer words, offset and limit. The method only decides whether it is an error if no
        answer tokens are found.
    limits : Limits, optional
        How fast to ask, and when to stop.
    progress, stage : callable, optional
        Called after every reply, and before the probe waits for the endpoint.

    Raises
    ------
    InputError
        If the endpoint needs an API key and there is none.
    FatalError
        If the key, the model or the address is wrong, or no token of the model is an answer word.
    """
    settings.endpoint.check_key()
    loaded = await asyncio.to_thread(open_items, items, settings.prompt)
    settings = settings.resolved(len(loaded), loaded.words)
    check_semantics(settings)
    choosing = MethodChoice(settings, len(loaded)) if settings.auto else None
    sample = probe_sample(loaded, settings.design.seed)
    async with HttpEndpoint(settings.endpoint) as model:
        governor = Governor(model, RunContext.of(limits, None, progress, stage, stop))
        asked = GovernedEndpoint(governor, expected=PROBE_QUERIES)
        if (odd := await model.unlisted()) is not None:
            governor.run.tell(odd)
        choice = await choose_tokens(model, asked, sample[-PILOTS:], settings)
        probed = await probe_sampled(asked, sample, choice, settings, choosing)
        return EndpointProbe(choice, probed, choosing)


probe = blocking(_probe)
