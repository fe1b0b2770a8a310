"""The audit that a watch is held against, and that says how the endpoint is asked."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from blindcal.auditing.prepared import AskedSettings, Prepared
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import InputError, UnfitError
from blindcal.methods import METHODS
from blindcal.records import Item
from blindcal.results.certificate import AskedAs
from blindcal.results.run import Run, opened
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, ServedModel, Store
from blindcal.text import printable


@dataclass(frozen=True)
class WatchReference:
    """A finished run, how it asked, its items if it keeps their prompts, and the names in its replies."""

    run: Run
    settings: Settings
    prepared: Prepared
    accepted: Accepted | None
    items: list[Item] | None
    served: tuple[ServedModel, ...]

    @property
    def question(self) -> TokenQuestion:
        """How queries are formatted and their answers read."""
        found = self.prepared.question(self.settings)
        assert isinstance(found, TokenQuestion)
        return found

    @property
    def digest(self) -> str:
        """What tells this run from others, wherever it is."""
        answered = self.run.answered
        found = hashlib.blake2b(msgspec.json.encode(self.run.settings), digest_size=16)
        for column in (answered.items, answered.shifts, answered.answers):
            found.update(np.ascontiguousarray(column).tobytes())
        return found.hexdigest()


def open_reference(
    run: Run | str | Path,
    *,
    api_key_env: str = "OPENAI_API_KEY",
    timeout: float = 60.0,
    force: bool = False,
) -> WatchReference:
    """Read a finished run that a watch can be held against; an error says why it cannot."""
    found = opened(run)
    _check(found, force)
    with Store.read(found.folder / RUN_FILE) as store:
        how = AskedAs(found.settings, store.note("ready") or {}, store.note("accepted"))
        items, served = store.questions(), tuple(store.served_names())
    asked = AskedSettings.of(how, "the reference", "audit again", api_key_env=api_key_env, timeout=timeout)
    return WatchReference(found, asked.settings, asked.prepared, asked.accepted, items, served)


def _check(run: Run, force: bool) -> None:
    if run.result.answers or run.choices is not None:
        raise InputError(
            f"{run.folder}: its items have more than two answers, and only questions with two can be watched"
        )
    method = METHODS[run.result.method]
    if not method.biased or method.sampled or run.result.semantics not in ("pair", "max"):
        raise InputError(
            f"{run.folder}: a watch asks at exact thresholds, by logit_bias, and this audit (method "
            f"{run.result.method}, {run.result.semantics}) did not",
            remedy="audit with {method} where the endpoint takes logit_bias",
            options={"method": "latent"},
        )
    doubt = run.result.objection or next(iter(run.result.warnings), None)
    if doubt is not None and not force:
        raise UnfitError(
            f"{run.folder}: the audit is no sound reference: {printable(doubt, 400)}",
            remedy="audit again in another folder; or {force} goes on",
            options={"force": True},
        )
