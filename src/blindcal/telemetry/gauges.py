"""The numbers of a watch as gauges, the same for Prometheus and for OpenTelemetry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from blindcal.records import Estimate
from blindcal.results.watch_result import WatchResult
from blindcal.text import visible


@dataclass(frozen=True, slots=True)
class GaugeValue:
    """One value of a gauge, and the labels that tell it from the gauge's other values."""

    value: float
    labels: dict[str, str]


@dataclass(frozen=True, slots=True)
class WatchGauge:
    """A gauge: its name without prefix, what it measures, and its values now."""

    name: str
    help: str
    readings: tuple[GaugeValue, ...]


def gauges(result: WatchResult) -> tuple[WatchGauge, ...]:
    """Every gauge that has a value; each value is labelled with the watch's folder and its model."""
    own = {"watch": watch_name(result), "model": visible(result.model)}
    alarms, slices, spend = result.state.alarms, result.state.slices, result.spend
    by_alarm: list[dict[str, str]] = [{"alarm": alarm.name} for alarm in alarms]
    by_slice = [{"slice": visible(one.name)} for one in slices]

    def each(values: list[float], labels: list[dict[str, str]]) -> tuple[GaugeValue, ...]:
        return tuple(
            GaugeValue(float(value), {**own, **mine}) for value, mine in zip(values, labels, strict=True)
        )

    def single(value: float | None) -> tuple[GaugeValue, ...]:
        return () if value is None else each([value], [{}])

    def by(label: str, values: dict[str, int]) -> tuple[GaugeValue, ...]:
        return each(list(values.values()), [{label: name} for name in values])

    def intervals(label: str, estimates: list[tuple[str, Estimate]]) -> tuple[GaugeValue, ...]:
        known = [
            (value, {label: visible(name), "bound": bound})
            for name, one in estimates
            for bound, value in (("value", one.value), ("low", one.low), ("high", one.high))
            if value is not None
        ]
        return each([value for value, _ in known], [labels for _, labels in known])

    window = result.window
    eces = [] if window is None else [("window", window.ece), ("reference", window.reference_ece)]
    found = (
        WatchGauge("raised", "1 if any alarm is raised.", single(result.raised)),
        WatchGauge(
            "alarm_raised",
            "1 if the alarm is raised.",
            each([alarm.raised for alarm in alarms], by_alarm),
        ),
        WatchGauge(
            "alarm_log_evidence",
            "Natural logarithm of the alarm's e-value.",
            each([alarm.log_evidence for alarm in alarms], by_alarm),
        ),
        WatchGauge(
            "alarm_log_threshold",
            "Log evidence that raises the alarm.",
            each([math.log(alarm.threshold) for alarm in alarms], by_alarm),
        ),
        WatchGauge(
            "alarm_level",
            "Highest chance that the alarm is ever raised for nothing.",
            each([alarm.level for alarm in alarms], by_alarm),
        ),
        WatchGauge(
            "alarm_observations",
            "Observations that the alarm has tested.",
            each([alarm.observations for alarm in alarms], by_alarm),
        ),
        WatchGauge("changed_facts", "Facts about the endpoint that have changed.", single(len(result.facts))),
        WatchGauge(
            "gap",
            "Confidence minus share of positive labels, and the ends of its confidence sequence.",
            intervals("items", [(one.name, one.gap) for one in result.state.gaps]),
        ),
        WatchGauge(
            "slice_raised",
            "1 if the slice is raised.",
            each([one.raised_at is not None for one in slices], by_slice),
        ),
        WatchGauge("slice_labelled", "Labelled answers.", each([one.labelled for one in slices], by_slice)),
        WatchGauge(
            "slice_gap",
            "Confidence minus share of positive labels of a slice, and the ends of its confidence sequence.",
            intervals("slice", [(one.name, one.gap) for one in slices]),
        ),
        WatchGauge(
            "ece",
            "ECE of the last labelled items and of the reference, with the ends of its interval.",
            intervals("of", eces),
        ),
        WatchGauge(
            "items",
            "Items by state.",
            by(
                "state",
                {
                    "seen": result.records,
                    "chosen": result.chosen,
                    "answered": result.answered,
                    "invalid": result.invalid,
                    "waiting": result.waiting,
                    "labelled": result.labelled,
                },
            ),
        ),
        WatchGauge(
            "ignored_records",
            "Records that do not count, by reason.",
            by(
                "reason",
                {
                    "duplicate": result.duplicates,
                    "conflict": result.conflicts,
                    "unreadable": result.unreadable,
                    "label_without_item": result.labels_without_item,
                },
            ),
        ),
        WatchGauge("queries", "Queries since the watch began.", single(spend.queries)),
        WatchGauge("cost_dollars", "Cost since the watch began.", single(spend.cost)),
        WatchGauge("cost_today_dollars", "Cost of this day (UTC).", single(result.cost_today)),
        WatchGauge("looks", "Looks since the watch began.", single(result.look)),
        WatchGauge("stopped", "1 if the watch was stopped early.", single(not result.complete)),
        WatchGauge(
            "last_look_timestamp_seconds",
            "Time of the last look.",
            single(datetime.fromisoformat(result.looked).timestamp()),
        ),
    )
    return tuple(one for one in found if one.readings)


def watch_name(result: WatchResult) -> str:
    """The name of a watch's folder, without those above it."""
    return visible(Path(result.folder).resolve().name)
