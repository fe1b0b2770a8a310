"""What a watch tells others: a webhook, Prometheus and OpenTelemetry."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from blindcal.errors import InputError, MissingExtraError
from blindcal.estimate.alarms import SliceAlarm
from blindcal.records import Estimate
from blindcal.results.watch_result import WatchResult
from blindcal.telemetry.gauges import gauges
from blindcal.telemetry.open_telemetry import send_gauges
from blindcal.telemetry.prometheus import prometheus_text, write_prometheus
from blindcal.telemetry.webhook import NOTIFIED_FILE, check_webhook, notifications, notify
from keys import KEY, leaked
from receiving import receiving
from watched_streams import quiet_result, watch_result

HOSTILE = 'a"b\\c\nd\u202e{x="1"}'


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> WatchResult:
    """A watch whose calibration and slices are raised."""
    return watch_result(tmp_path_factory.mktemp("raised"), overconfident=True, window=True)


def in_folder(result: WatchResult, folder: Path) -> WatchResult:
    return replace(result, folder=str(folder))


def alarms(bodies: list[bytes]) -> list[str]:
    return [json.loads(body)["alarm"] for body in bodies]


class TestWebhook:
    def test_the_body_says_what_happened(self, raised: WatchResult, tmp_path: Path) -> None:
        """The body has its format, the alarm, words, numbers and what to do, and nothing else."""
        with receiving() as server:
            assert notify(in_folder(raised, tmp_path), server.url) == ()
        first = json.loads(server.posts[0].body)
        assert set(first) == {
            *("format", "event", "id", "alarm", "text", "advice", "model", "watch", "looked", "level"),
            *("log_evidence", "observations", "raised_at", "since", "first_seen", "slices"),
        }
        alarm = raised.state.alarm("calibration")
        assert alarm is not None
        assert (first["format"], first["event"], first["alarm"]) == (1, "alarm", "calibration")
        assert first["raised_at"] == alarm.raised_at
        assert first["log_evidence"] == pytest.approx(alarm.log_evidence)
        assert "Audit again" in first["advice"]
        assert first["first_seen"] == "2026-11-14T08:30:00+00:00"
        assert first["watch"] == tmp_path.name
        assert server.posts[0].headers["content-type"] == "application/json"

    def test_quiet_tells_nothing(self, tmp_path: Path) -> None:
        """Nothing is posted and no note is made while nothing is raised."""
        with receiving() as server:
            assert notify(quiet_result(tmp_path), server.url) == ()
        assert server.posts == []
        assert list(tmp_path.iterdir()) == []

    def test_once_per_alarm_also_over_restarts(self, raised: WatchResult, tmp_path: Path) -> None:
        """Each alarm is posted once, however often the watch looks; the note is in the folder."""
        result = in_folder(raised, tmp_path)
        with receiving() as server:
            for _ in range(3):
                assert notify(result, server.url) == ()
        assert sorted(alarms([post.body for post in server.posts])) == ["calibration", "slices"]
        assert (tmp_path / NOTIFIED_FILE).exists()

    def test_a_new_alarm_is_told_alone(self, raised: WatchResult, tmp_path: Path) -> None:
        """An alarm that is raised later, and slices that are, are told without those before."""
        result = in_folder(raised, tmp_path)
        new = SliceAlarm("astronomy", 90, 9.0, 700, Estimate(0.2, 0.1, 0.3, 0.95))
        with receiving() as server:
            notify(result, server.url)
            server.posts.clear()
            state = replace(result.state, slices=(new, *result.state.slices))
            later = replace(result, facts=("replies name another model",), state=state)
            assert notify(later, server.url) == ()
        bodies = [json.loads(post.body) for post in server.posts]
        assert [body["alarm"] for body in bodies] == ["endpoint", "slices"]
        assert "another model" in bodies[0]["text"]
        assert bodies[1]["slices"] == ["astronomy"]

    @pytest.mark.parametrize("status", [302, 404, 500])
    def test_a_failure_is_tried_again(self, raised: WatchResult, tmp_path: Path, status: int) -> None:
        """What was not taken is a reason in words and posted at the next look, under the same id."""
        result = in_folder(raised, tmp_path)
        with receiving(status) as server:
            server.location = f"{server.url}/elsewhere"
            problems = notify(result, f"{server.url}/secret-path")
            assert len(problems) == 2
            assert all(str(status) in one for one in problems)
            assert "secret-path" not in "".join(problems)
            assert {post.path for post in server.posts} == {"/secret-path"}  # no redirect is followed
            server.status = 204
            assert notify(result, server.url) == ()
        ids = [json.loads(post.body)["id"] for post in server.posts]
        assert ids[:2] == ids[2:]
        assert len(set(ids)) == 2

    def test_no_server_is_a_reason_not_an_error(self, raised: WatchResult, tmp_path: Path) -> None:
        """Where nobody listens, the reason names the host alone."""
        with receiving() as server:
            url = f"{server.url}/T0/secret"
        problems = notify(in_folder(raised, tmp_path), url)
        assert len(problems) == 2
        assert "127.0.0.1: no connection" in problems[0]
        assert "secret" not in "".join(problems)

    def test_works_within_an_event_loop(self, raised: WatchResult, tmp_path: Path) -> None:
        """A look may be told from a running event loop."""

        async def look(url: str) -> tuple[str, ...]:
            return notify(in_folder(raised, tmp_path), url)

        with receiving() as server:
            assert asyncio.run(look(server.url)) == ()
        assert len(server.posts) == 2

    def test_no_key_is_sent(self, raised: WatchResult, tmp_path: Path) -> None:
        """The API key of the environment goes neither into a body nor into a header."""
        with receiving() as server:
            notify(in_folder(raised, tmp_path), server.url)
        sent = [post.body + repr(post.headers).encode() for post in server.posts]
        assert KEY
        assert not any(map(leaked, sent))

    def test_hostile_names_stay_text(self, raised: WatchResult, tmp_path: Path) -> None:
        """Control and reordering characters in names are escaped."""
        body = notifications(replace(in_folder(raised, tmp_path), model=HOSTILE))[0]
        assert "\n" not in body.text
        assert "\u202e" not in body.text + body.model

    def test_a_damaged_note_is_an_error_with_a_cure(self, raised: WatchResult, tmp_path: Path) -> None:
        """A note that cannot be read is not taken for an empty one, or everything would be told again."""
        (tmp_path / NOTIFIED_FILE).write_text("{")
        with receiving() as server, pytest.raises(InputError, match="remove the file"):
            notify(in_folder(raised, tmp_path), server.url)
        assert server.posts == []

    @pytest.mark.parametrize(
        "url", ["hidden.example.org/x", "ftp://hidden/x", "https:///hidden", "http://[::hidden"]
    )
    def test_an_incomplete_url_is_refused_unseen(self, url: str) -> None:
        """A URL that cannot be posted to is refused without being shown."""
        with pytest.raises(InputError, match="complete URL") as caught:
            check_webhook(url)
        assert "hidden" not in str(caught.value)


class TestPrometheus:
    def test_its_own_parser_reads_every_gauge(self, raised: WatchResult) -> None:
        """The text has the result's numbers, read by the library's own parser."""
        from prometheus_client.parser import text_string_to_metric_families

        families = {one.name: one for one in text_string_to_metric_families(prometheus_text(raised).decode())}
        assert all(name.startswith("blindcal_watch_") for name in families)
        assert all(one.type == "gauge" and one.documentation for one in families.values())

        def values(name: str, label: str) -> dict[str, float]:
            return {one.labels[label]: one.value for one in families[f"blindcal_watch_{name}"].samples}

        assert values("alarm_raised", "alarm") == {"endpoint": 0, "questions": 0, "calibration": 1}
        assert values("alarm_log_evidence", "alarm") == pytest.approx(
            {one.name: one.log_evidence for one in raised.state.alarms}
        )
        assert values("items", "state")["seen"] == raised.records
        assert values("last_look_timestamp_seconds", "model") == {"gpt-4o-mini": 1794832200.0}
        gaps = {
            (one.labels["items"], one.labels["bound"]): one.value
            for one in families["blindcal_watch_gap"].samples
        }
        assert gaps["all items", "low"] == raised.state.gaps[0].gap.low

    def test_what_is_unknown_is_left_out(self, tmp_path: Path) -> None:
        """No gauge has a value that is not known: no NaN, no zero in its place."""
        unpriced = replace(quiet_result(tmp_path), cost_today=None)
        unpriced = replace(unpriced, spend=replace(unpriced.spend, cost=None))
        names = {one.name for one in gauges(unpriced)}
        assert not names & {"cost_dollars", "cost_today_dollars", "ece", "slice_gap"}
        assert all(math.isfinite(one.value) for gauge in gauges(unpriced) for one in gauge.readings)
        assert b"NaN" not in prometheus_text(unpriced)

    def test_hostile_names_survive(self, raised: WatchResult) -> None:
        """Quotes, backslashes, line breaks and braces in names do not break the text."""
        from prometheus_client.parser import text_string_to_metric_families

        hostile = SliceAlarm(HOSTILE, 5, 0.0, None, Estimate(0.1, 0.0, 0.2, 0.95))
        result = replace(raised, model=HOSTILE, state=replace(raised.state, slices=(hostile,)))
        text = prometheus_text(result).decode()
        found = [
            one.labels["slice"]
            for family in text_string_to_metric_families(text)
            if family.name == "blindcal_watch_slice_raised"
            for one in family.samples
        ]
        assert found == ['a"b\\c\\nd\\u202e{x="1"}']

    def test_it_is_written_whole(self, raised: WatchResult, tmp_path: Path) -> None:
        """The file is replaced, with nothing left beside it that a collector would read."""
        path = tmp_path / "blindcal.prom"
        path.write_text("old")
        write_prometheus(raised, path)
        assert path.read_bytes() == prometheus_text(raised)
        assert [one.name for one in tmp_path.iterdir()] == ["blindcal.prom"]

    def test_without_the_extra(self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install."""
        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        with pytest.raises(MissingExtraError, match=r"blindcal\[prometheus\]"):
            prometheus_text(raised)


class TestOpenTelemetry:
    def test_a_collector_gets_every_gauge(self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch) -> None:
        """A real receiver of OTLP over HTTP gets the same gauges, as the variables of OpenTelemetry say."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        with receiving() as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=calibration")
            assert send_gauges(raised)
        (post,) = server.posts
        assert post.path == "/v1/metrics"
        assert post.headers["x-tenant"] == "calibration"
        sent = ExportMetricsServiceRequest.FromString(post.body).resource_metrics[0]
        resource = {one.key: one.value.string_value for one in sent.resource.attributes}
        assert resource["service.name"] == "blindcal"
        assert resource["service.instance.id"] == Path(raised.folder).name
        found = {
            (
                metric.name,
                *sorted((one.key, one.value.string_value) for one in point.attributes),
            ): point.as_double
            for metric in sent.scope_metrics[0].metrics
            for point in metric.gauge.data_points
        }
        wanted = {
            (f"blindcal.watch.{gauge.name}", *sorted(one.labels.items())): one.value
            for gauge in gauges(raised)
            for one in gauge.readings
        }
        assert found == pytest.approx(wanted)

    def test_the_users_service_name_wins(self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch) -> None:
        """OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override ours."""
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        monkeypatch.setenv("OTEL_SERVICE_NAME", "support-bot")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=blue")
        with receiving() as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
            assert send_gauges(raised)
        sent = ExportMetricsServiceRequest.FromString(server.posts[0].body).resource_metrics[0]
        resource = {one.key: one.value.string_value for one in sent.resource.attributes}
        assert (resource["service.name"], resource["service.instance.id"]) == ("support-bot", "blue")

    def test_a_refusal_is_told(
        self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A collector that refuses gives False, and the library prints nothing of its own."""
        with receiving(400) as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
            assert not send_gauges(raised)
        assert len(server.posts) == 1
        assert "".join(capfd.readouterr()) == ""

    def test_a_disabled_sdk_sends_nothing(self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch) -> None:
        """OTEL_SDK_DISABLED is honoured."""
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        with receiving() as server:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
            assert send_gauges(raised)
        assert server.posts == []

    def test_without_the_extra(self, raised: WatchResult, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error says what to install."""
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
        with pytest.raises(MissingExtraError, match=r"blindcal\[otel\]"):
            send_gauges(raised)
