"""``blindcal probe``: can this endpoint be audited, and how?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from blindcal.auditing.job import Progress
from blindcal.auditing.prepare import ABOUT
from blindcal.cli import options
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Endpoint, Patient
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.probe import ITEMS, Probe, probe
from blindcal.items import catalogue
from blindcal.progress_bar import ProgressBar
from blindcal.records import Item, Reply, Request, Targets, Usage
from blindcal.settings import Settings
from blindcal.text import printable

EXIT = {"thresholds": 0, "temperature": 3, "not auditable": 4}
_MARKS = {"good": "ok", "caution": "mind", "bad": "NO", "unknown": "?"}
_ADVICE = {
    "thresholds": "audit with --method latent",
    "temperature": "audit with --method temperature",
    "not auditable": "do not audit this endpoint as it is",
}


@click.command("probe", short_help="Find out whether and how an endpoint can be audited.")
@click.argument("items", type=click.Path(path_type=Path))
@options.endpoint_options
@options.answer_options
@options.reading_options
@options.field_options
@click.option(
    "--offset",
    type=float,
    default=50.0,
    show_default=True,
    help="The bias added to both answers, so that nothing else is said.",
)
@click.option(
    "--limit", type=float, default=100.0, show_default=True, help="The largest bias the service takes."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses which items are asked."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(
    items: Path,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Find out, in a few dozen queries, whether and how an endpoint can be audited.

    ITEMS is the file of questions that the audit would ask; a handful of them are asked here.

    \b
    Exit status:
      0  thresholds are usable: logit_bias acts as it should
      3  only temperature is usable
      4  the endpoint is not auditable
      1  an error: wrong key, model, address or file
      2  a wrong command line
    """
    settings = Settings(**chosen)
    catalogue.check_there(items)
    endpoint = options.open_endpoint(settings.address)
    with options.load_items(items, settings) as questions:
        settings = settings.resolved(len(questions), questions.words)
        order = np.random.default_rng(settings.seed).permutation(len(questions))[: ITEMS + options.PILOTS]
        sample = [questions[int(k)] for k in order]
    with ProgressBar(disable=None) as bar:
        choice, found = asyncio.run(_probe(endpoint, settings, sample, bar))
    if as_json:
        click.echo(msgspec.json.encode({**_fields(found), "votes": choice.votes}))
    else:
        _show(choice, found)
    click.get_current_context().exit(EXIT[found.verdict])


class _Counted:
    """An endpoint whose replies move a bar."""

    def __init__(self, endpoint: Endpoint, bar: ProgressBar) -> None:
        self._endpoint, self._bar, self._asked = endpoint, bar, 0

    async def ask(self, request: Request) -> Reply:
        reply = await self._endpoint.ask(request)
        self._asked += 1
        self._bar(Progress(self._asked, max(self._asked, ABOUT), Usage(), None, 1, probing=True))
        return reply

    async def close(self) -> None:
        await self._endpoint.close()


async def _probe(
    endpoint: HttpEndpoint, settings: Settings, sample: list[Item], bar: ProgressBar
) -> tuple[tokens.Choice, Probe]:
    async with endpoint:
        patient = Patient(_Counted(endpoint, bar))
        choice = await options.choose_tokens(endpoint, patient, sample[-options.PILOTS :], settings)
        found = await probe(
            patient,
            sample[:ITEMS],
            choice.targets,
            offset=settings.offset,
            limit=settings.limit,
            seed=settings.seed,
        )
        return choice, found


def _fields(found: Probe) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(found)
    return fields


def _show(choice: tokens.Choice, found: Probe) -> None:
    click.echo(f"answers   {_described(choice.targets)}")
    if choice.queries:
        votes = ", ".join(f"{printable(text)!r} {count}" for text, count in choice.votes.items())
        click.echo(f"          chosen by {choice.queries} pilot queries: {votes or 'nothing recognised'}")
    width = max(len(finding.question) for finding in found.findings)
    for finding in found.findings:
        mark = _MARKS[finding.outcome]
        click.echo(f"{mark:>6}    {finding.question:<{width}}  {printable(finding.answer, 400)}")
    click.echo(f"verdict   {found.verdict}: {printable(found.reason, 400)}")
    click.echo(f"          {_ADVICE[found.verdict]}")
    used = found.queries + choice.queries
    click.echo(
        f"cost      {used} queries, {found.prompt_tokens} + {found.completion_tokens} tokens in the probe"
    )


def _described(targets: Targets) -> str:
    sides = (targets.positive, targets.negative)
    return " / ".join(", ".join(f"{printable(t.text)!r} ({t.id})" for t in side) for side in sides)
