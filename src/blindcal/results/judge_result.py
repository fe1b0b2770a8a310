"""What the verdicts of a judge are worth: the record of a file of verdicts and labels, and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blindcal.atomic_write import write_file
from blindcal.estimate.verdicts import JudgeFindings
from blindcal.json_form import json_page
from blindcal.results.result import SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """The result of an audit of verdicts alone; ``judge`` has the place that it has in an audit's result.

    ``unjudged`` counts the items without a verdict, which are left out.
    """

    schema_version: int = SCHEMA_VERSION
    blindcal: str
    created: str
    items: str
    verdict_field: str
    strata_field: str | None
    unjudged: int
    judge: JudgeFindings

    def to_json(self) -> bytes:
        return json_page(self)

    def save(self, path: Path) -> None:
        """Write the JSON form atomically."""
        write_file(path, self.to_json())
