"""The gauges of a watch as Prometheus text, for the textfile collector of node_exporter."""

from __future__ import annotations

from pathlib import Path

from blindcal.atomic_write import atomic_write
from blindcal.errors import MissingExtraError
from blindcal.results.watch_result import WatchResult
from blindcal.telemetry.gauges import gauges

PREFIX = "blindcal_watch_"


def check_prometheus() -> None:
    """Raise `MissingExtraError` if the library is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "Prometheus text needs prometheus-client: pip install 'blindcal[prometheus]'"
        ) from None


def prometheus_text(result: WatchResult) -> bytes:
    """Every gauge in the text format of Prometheus."""
    check_prometheus()
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    for one in gauges(result):
        names = tuple(one.readings[0].labels)
        gauge = Gauge(PREFIX + one.name, one.help, names, registry=registry)
        for reading in one.readings:
            gauge.labels(**reading.labels).set(reading.value)
    return generate_latest(registry)


def write_prometheus(result: WatchResult, path: Path) -> None:
    """Write the text atomically, so that a collector never reads half of it."""
    text = prometheus_text(result)
    with atomic_write(path) as draft:
        draft.write_bytes(text)
