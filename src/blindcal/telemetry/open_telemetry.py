"""The gauges of a watch, sent to an OpenTelemetry collector over OTLP/HTTP.

The usual variables say where and how: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_HEADERS``,
``OTEL_SERVICE_NAME`` and so on. Values are sent once per look and not by a thread of the SDK, so that a
failure is known when it happens.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import version

from blindcal.errors import MissingExtraError
from blindcal.results.watch_result import WatchResult
from blindcal.telemetry.gauges import gauges, watch_name

PREFIX = "blindcal.watch."
TIMEOUT = 3.0  # seconds in which the library tries again, unless the user's variables say otherwise
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_EXPORTER_OTLP_METRICS_TIMEOUT")


def check_open_telemetry() -> None:
    """Raise `MissingExtraError` if the SDK or its exporter is not installed."""
    try:
        import opentelemetry.exporter.otlp.proto.http.metric_exporter
        import opentelemetry.sdk.metrics  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "OpenTelemetry needs its SDK and exporter: pip install 'blindcal[otel]'"
        ) from None


def send_gauges(result: WatchResult) -> bool:
    """Send every gauge to the collector; returns whether it took them."""
    check_open_telemetry()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # a failure is told by the caller
    # without an instance of its own, each run of a cron job would be a new one
    ours = {"service.name": "blindcal", "service.instance.id": watch_name(result)}
    named = OTELResourceDetector().detect().attributes
    resource = Resource.create({name: value for name, value in ours.items() if name not in named})
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], resource, shutdown_on_exit=False)
    named_timeout = any(os.environ.get(name) for name in _TIMEOUTS)
    exporter = OTLPMetricExporter(timeout=None if named_timeout else TIMEOUT)
    try:
        meter = provider.get_meter("blindcal", version("blindcal"))
        for one in gauges(result):
            gauge = meter.create_gauge(PREFIX + one.name, description=one.help)
            for reading in one.readings:
                gauge.set(reading.value, reading.labels)
        data = reader.get_metrics_data()
        return data is None or exporter.export(data) is MetricExportResult.SUCCESS
    finally:
        exporter.shutdown()
        provider.shutdown()
