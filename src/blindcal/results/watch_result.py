"""The state of a watch after a look: counts, alarms and changed facts; ``watch.json`` in its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blindcal.atomic_write import write_file
from blindcal.estimate.findings import Curve
from blindcal.estimate.streams.alarms import AlarmName, MonitorState
from blindcal.json_form import json_line, json_page, read_saved
from blindcal.records import Estimate
from blindcal.results.result import Spend

WATCH_FILE = "watch.json"
FORMAT = 1
"""The version of the file format; a file with another one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowCurve:
    items: int
    curve: Curve
    ece: Estimate
    reference: Curve | None
    reference_ece: Estimate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WatchResult:
    """The state of a watch after its look number ``look``.

    Times are in UTC (ISO 8601). Of ``records`` different items, ``chosen`` are to be asked; of these,
    ``answered`` have a valid answer, ``invalid`` have none, and ``waiting`` are not asked yet. ``facts`` say
    what has changed at the endpoint since the reference audit. ``first_seen`` is the time of the first item
    that counts as evidence for each raised alarm.
    """

    format: int = FORMAT
    folder: str
    model: str
    reference: str
    stream: str
    started: str
    looked: str
    look: int
    records: int
    chosen: int
    answered: int
    invalid: int
    waiting: int
    labelled: int
    duplicates: int
    conflicts: int
    unreadable: int
    labels_without_item: int
    state: MonitorState
    facts: tuple[str, ...]
    first_seen: dict[AlarmName, str]
    window: WindowCurve | None
    spend: Spend
    stopped: str | None

    def __repr__(self) -> str:
        verdict = "raised" if self.raised else "quiet"
        return f"WatchResult({self.folder!r}, look {self.look:,}, {self.answered:,} answers, {verdict})"

    @property
    def raised(self) -> bool:
        """Whether an alarm is raised, or a fact about the endpoint has changed."""
        return self.state.raised or bool(self.facts)

    @property
    def raised_names(self) -> tuple[str, ...]:
        """The names of the alarms that are raised."""
        alarms = {alarm.name for alarm in self.state.alarms if alarm.raised}
        return tuple(sorted(alarms | ({"endpoint"} if self.facts else set())))

    @property
    def complete(self) -> bool:
        """Whether the watch was not stopped early."""
        return self.stopped is None

    def to_json(self) -> bytes:
        """The JSON form, on one line."""
        return json_line(self)

    def save(self) -> None:
        """Write the JSON form into the folder, atomically."""
        write_file(Path(self.folder) / WATCH_FILE, json_page(self))

    @classmethod
    def load(cls, path: str | Path) -> WatchResult:
        """Read a result back from its file, or from the folder of its watch."""
        path = Path(path)
        return read_saved(path / WATCH_FILE if path.is_dir() else path, cls, "watch", FORMAT)
