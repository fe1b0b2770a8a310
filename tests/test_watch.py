"""A watch asks each item of a stream once, whatever arrives when and in which order."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from blindcal.asking.limits import Limits
from blindcal.errors import InputError
from blindcal.results.watch_result import WatchResult
from blindcal.simulation.http_server import HttpResponse
from blindcal.simulation.replay import error
from blindcal.store.run_store import RUN_FILE
from blindcal.store.watch_store import WatchStore
from blindcal.watching.watch import watch, watch_async
from watching import REFERENCE, N, Production, production, write

STREAM = range(REFERENCE, N)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    """A model in production."""
    with production(tmp_path_factory.mktemp("live")) as found:
        yield found


@pytest.fixture(scope="module")
def plain(live: Production, tmp_path_factory: pytest.TempPathFactory) -> tuple[WatchResult, Path]:
    """The watch of a stream whose labels come with the items, and its folder."""
    folder = tmp_path_factory.mktemp("plain")
    stream = write(folder / "stream.jsonl", live.records())
    return live.watch(stream, folder / "watch"), folder / "watch"


def test_every_item_is_asked_at_a_threshold_of_its_own(
    live: Production, plain: tuple[WatchResult, Path]
) -> None:
    """The answer says whether the true probability is at least the threshold, which is uniform."""
    found, out = plain
    asked = live.asked(out)
    assert found.records == found.chosen == found.answered == found.labelled == len(asked) == len(STREAM)
    assert found.waiting == found.invalid == found.duplicates == found.conflicts == found.unreadable == 0
    for k in STREAM:
        shift, answer = asked[f"q{k}"]
        assert answer == (logit(live.p[k]) + shift >= 0)
    t = np.sort(expit([-shift for shift, _ in asked.values()]))
    gaps = np.abs(t - (np.arange(t.size) + 0.5) / t.size)
    assert gaps.max() < 1.63 / np.sqrt(t.size)  # Kolmogorov-Smirnov, 1%
    assert not found.raised
    assert found.stopped is None
    assert found.window is not None
    assert WatchResult.load(out) == found


def test_the_same_again_asks_nothing(live: Production, plain: tuple[WatchResult, Path]) -> None:
    """A watch that has nothing new to read says the same again."""
    found, out = plain
    stream, before = out.parent / "stream.jsonl", live.server.requests
    again = live.watch(stream, out)
    assert again == found
    assert live.looks == [found]
    assert live.server.requests == before


def test_looks_follow_every_so_many_records(live: Production, tmp_path: Path) -> None:
    """A look per 100 records, and one for the rest; the anchors are asked at each."""
    stream = write(tmp_path / "stream.jsonl", live.records())
    found = live.watch(stream, tmp_path / "watch")
    assert [one.records for one in live.looks] == [100, 200, 240]
    assert [one.look for one in live.looks] == [1, 2, 3]
    endpoint = found.state.alarm("endpoint")
    assert endpoint is not None
    assert endpoint.observations == 12
    assert not endpoint.raised


def test_labels_that_come_late_count_like_others(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path
) -> None:
    """Labels in a second file, days after their items: the same gaps, counts and evidence in the end."""
    stream = write(tmp_path / "stream.jsonl", live.records(labelled=False))
    labels = tmp_path / "labels.jsonl"
    labels.touch()
    first = live.watch(stream, tmp_path / "watch", labels=labels)
    assert first.labelled == 0
    assert first.answered == len(STREAM)
    asked = live.server.answered
    rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in STREAM]
    write(labels, rows[:70])
    half = live.watch(stream, tmp_path / "watch", labels=labels)
    assert half.labelled == 70
    write(labels, rows[70:], "a")
    found = live.watch(stream, tmp_path / "watch", labels=labels)
    assert live.server.answered == asked
    assert_same_evidence(found, plain[0])


def assert_same_evidence(found: WatchResult, wanted: WatchResult) -> None:
    """The same items, gaps and final evidence, up to the order of the summands."""
    for name in ("records", "chosen", "answered", "invalid", "labelled"):
        assert getattr(found, name) == getattr(wanted, name), name
    for one, two in zip(found.state.gaps, wanted.state.gaps, strict=True):
        assert one == two
    for mine, other in zip(found.state.alarms, wanted.state.alarms, strict=True):
        assert mine.observations == other.observations
        assert mine.raised == other.raised
        if mine.name != "endpoint":
            assert mine.log_evidence == pytest.approx(other.log_evidence, abs=1e-9)


def test_labels_that_never_come_are_not_missed(live: Production, tmp_path: Path) -> None:
    """Items without a label count for the questions alone."""
    records = [live.record(k, labelled=k % 3 == 0) for k in STREAM]
    found = live.watch(write(tmp_path / "stream.jsonl", records), tmp_path / "watch")
    assert found.labelled == sum(k % 3 == 0 for k in STREAM)
    assert found.state.answers == len(STREAM)


def test_labels_may_come_before_their_items(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path
) -> None:
    """A label waits for its item, and then counts; until then it is counted as one without."""
    labels = write(tmp_path / "labels.csv", ())
    labels.write_text("id,label\n" + "".join(f"q{k},{live.labels[k]}\n" for k in STREAM))
    stream = write(tmp_path / "stream.jsonl", live.records(range(REFERENCE, 200), labelled=False))
    first = live.watch(stream, tmp_path / "watch", labels=labels)
    assert (first.labelled, first.labels_without_item) == (40, len(STREAM) - 40)
    write(stream, live.records(range(200, N), labelled=False), "a")
    found = live.watch(stream, tmp_path / "watch", labels=labels)
    assert found.labels_without_item == 0
    assert_same_evidence(found, plain[0])


def test_the_order_of_labels_changes_nothing(live: Production, tmp_path: Path) -> None:
    """Labels that come between two looks in another order lead to the identical state."""
    states = []
    rows = [{"id": f"q{k}", "label": int(live.labels[k])} for k in STREAM]
    for name, order in (("forth", rows), ("back", rows[::-1])):
        folder = tmp_path / name
        folder.mkdir()
        stream = write(folder / "stream.jsonl", live.records(labelled=False))
        labels = write(folder / "labels.jsonl", order)
        states.append(live.watch(stream, folder / "watch", labels=labels).state)
    assert states[0] == states[1]


def test_the_order_of_items_changes_no_query(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path
) -> None:
    """The same items in another order are asked the same, and come to the same evidence from the start."""
    shuffled = np.random.default_rng(3).permutation(STREAM).tolist()
    stream = write(tmp_path / "stream.jsonl", live.records(shuffled))
    found = live.watch(stream, tmp_path / "watch")
    assert live.asked(tmp_path / "watch") == live.asked(plain[1])
    assert_same_evidence(found, plain[0])


def test_duplicates_are_ignored_and_conflicts_counted(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path
) -> None:
    """The first prompt and the first label of an id stay; a label in a duplicate counts if none was known."""
    records = live.records()
    records[3] = live.record(REFERENCE + 3, labelled=False)
    odd = [
        live.record(REFERENCE),  # a duplicate
        live.record(REFERENCE + 3),  # brings the label
        live.record(REFERENCE + 3),  # a duplicate
        {**live.record(REFERENCE + 5), "label": 1 - int(live.labels[REFERENCE + 5])},  # another label
        {**live.record(REFERENCE + 6), "n": 7},  # another prompt
        {"id": f"q{REFERENCE + 7}", "label": int(live.labels[REFERENCE + 7])},  # a label that is known
    ]
    stream = write(tmp_path / "stream.jsonl", [*records[:50], *odd, *records[50:]])
    before = live.server.paid.copy()
    found = live.watch(stream, tmp_path / "watch")
    assert (found.duplicates, found.conflicts) == (3, 2)
    paid = live.server.paid - before
    assert all(paid[f"q{k}"] == 1 for k in STREAM)
    assert_same_evidence(found, plain[0])


def test_broken_lines_are_counted_and_named_once(live: Production, tmp_path: Path) -> None:
    """What is no record, or lacks a field of the prompt, is skipped; a bad label alone is left out."""
    stream = write(tmp_path / "stream.jsonl", live.records())
    lines = stream.read_text().splitlines()
    lines[10:10] = ["{broken", "[1]", '{"id": "x"}', '{"id": "y", "n": 3, "label": "maybe"}', "", "\xff"]
    stream.write_text("\n".join(lines) + "\n")
    told: list[str] = []
    found = live.watch(stream, tmp_path / "watch", stage=told.append)
    assert found.unreadable == 5
    assert found.records == len(STREAM) + 1
    assert found.labelled == len(STREAM)
    assert sum("skipped" in one for one in told) == 1
    assert "stream.jsonl, byte" in next(one for one in told if "skipped" in one)


@pytest.mark.parametrize("more", [{"label": "maybe"}, {"n": None}])
def test_no_option_is_named_for_a_broken_record(
    live: Production, tmp_path: Path, more: dict[str, Any]
) -> None:
    """The reference says how records are read, so a watch has no option that would help."""
    stream = write(tmp_path / "stream.jsonl", [{**live.record(200), **more}, live.record(201)])
    told: list[str] = []
    live.watch(stream, tmp_path / "watch", stage=told.append)
    (words,) = [one for one in told if "stream.jsonl, byte" in one]
    assert "=" not in words


def test_records_of_another_kind_are_an_error(live: Production, tmp_path: Path) -> None:
    """If no record can be read, the first error is raised, and no folder is left."""
    stream = write(tmp_path / "stream.jsonl", [{"id": k, "text": "hm"} for k in range(30)])
    with pytest.raises(InputError, match="named in the template, is missing"):
        live.watch(stream, tmp_path / "watch")
    assert not (tmp_path / "watch").exists()


def test_without_ids_the_prompt_stands_for_one(live: Production, tmp_path: Path) -> None:
    """The same prompt again is a duplicate."""
    records = [{"n": k, "label": int(live.labels[k])} for k in (200, 201, 200, 202)]
    found = live.watch(write(tmp_path / "stream.jsonl", records), tmp_path / "watch")
    assert (found.records, found.duplicates, found.labelled) == (3, 1, 3)


def test_a_rate_chooses_by_the_id(live: Production, tmp_path: Path) -> None:
    """A share of the items is asked, the same whatever the order; the others are counted as records."""
    stream = write(tmp_path / "stream.jsonl", live.records())
    found = live.watch(stream, tmp_path / "watch", rate=0.3)
    assert found.records == len(STREAM)
    assert 45 <= found.chosen == found.answered <= 100  # 72 with a standard deviation of 7
    back = write(tmp_path / "back.jsonl", live.records()[::-1])
    live.watch(back, tmp_path / "back", rate=0.3)
    assert live.asked(tmp_path / "back") == live.asked(tmp_path / "watch")
    with pytest.raises(InputError, match=r"rate: 0\.3 then, 0\.5 now"):
        live.watch(stream, tmp_path / "watch", rate=0.5)


def test_a_folder_is_read_file_by_file(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path
) -> None:
    """Files by name, of any format, also those that come later; what is no file of records is left alone."""
    folder = tmp_path / "traffic"
    folder.mkdir()
    write(folder / "b.jsonl", live.records(range(200, 300)))
    rows = "".join(f"q{k},{k},{live.labels[k]}\n" for k in range(REFERENCE, 200))
    (folder / "a.csv").write_text("id,n,label\n" + rows)
    (folder / "notes.txt").write_text("not a record")
    first = live.watch(folder, tmp_path / "watch")
    assert first.records == 300 - REFERENCE
    write(folder / "aa.jsonl", live.records(range(300, N)))
    found = live.watch(folder, tmp_path / "watch")
    assert_same_evidence(found, plain[0])
    assert found.duplicates == 0


def test_lines_on_standard_input(
    live: Production, plain: tuple[WatchResult, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe is read as its lines come, until it is closed."""
    lines = "".join(json.dumps(one) + "\n" for one in live.records())
    reading, writing = os.pipe()

    def fill() -> None:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(lines)

    threading.Thread(target=fill).start()
    with os.fdopen(reading) as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        found = live.watch(Path("-"), tmp_path / "watch")
    assert found.stream == "standard input"
    assert [one.records for one in live.looks] == [100, 200, 240]
    assert_same_evidence(found, plain[0])


def test_the_rest_of_a_pipe_is_kept_if_a_watch_is_stopped(
    live: Production, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that were taken from a pipe are nowhere else: they are asked about the next time."""
    records, out = live.records(range(200, 260)), tmp_path / "watch"

    def piped(lines: Sequence[object], stop: asyncio.Event | None = None) -> WatchResult:
        reading, writing = os.pipe()
        with os.fdopen(writing, "w") as pipe:
            pipe.writelines(json.dumps(one) + "\n" for one in lines)
        with os.fdopen(reading) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)

            def look(found: WatchResult) -> None:
                if stop is not None and found.records:
                    stop.set()

            return asyncio.run(watch_async("-", live.run, out=out, every=20, on_look=look, stop=stop))

    first = piped(records, asyncio.Event())
    assert first.records == 20
    again = piped([])
    assert again.records == again.answered == 60


def test_a_line_that_is_not_complete_waits(live: Production, tmp_path: Path) -> None:
    """The half of a record at the end of a growing file is read when the rest has come."""
    stream = write(tmp_path / "stream.jsonl", live.records(range(200, 210)))
    line = json.dumps(live.record(210))
    with stream.open("a") as file:
        file.write(line[:-5])
    first = live.watch(stream, tmp_path / "watch")
    assert (first.records, first.unreadable) == (10, 0)
    with stream.open("a") as file:
        file.write(line[-5:])  # complete, though its line has no end yet
    second = live.watch(stream, tmp_path / "watch")
    assert (second.records, second.unreadable) == (11, 0)
    with stream.open("a") as file:
        file.write("\n" + json.dumps(live.record(211)) + "\n")
    third = live.watch(stream, tmp_path / "watch")
    assert (third.records, third.unreadable, third.duplicates) == (12, 0, 0)


def test_half_of_a_row_of_labels_is_read_again(live: Production, tmp_path: Path) -> None:
    """A table of labels grows too: a last row without an end is read once more when more has come."""
    stream = write(tmp_path / "stream.jsonl", [live.record(k, labelled=False) for k in range(200, 210)])
    labels = tmp_path / "labels.csv"
    text = "id,label\n" + "".join(f"q{k},{live.labels[k]}\n" for k in range(200, 210))
    half = text.index("q205") + len("q205")
    labels.write_text(text[:half])
    first = live.watch(stream, tmp_path / "watch", labels=labels)
    assert (first.labelled, first.unreadable) == (5, 1)
    labels.write_text(text.removesuffix("\n"))
    second = live.watch(stream, tmp_path / "watch", labels=labels)
    assert (second.labelled, second.duplicates) == (10, 0)
    labels.write_text(text)
    third = live.watch(stream, tmp_path / "watch", labels=labels)
    assert (third.labelled, third.duplicates) == (10, 1)  # the row without an end, which was complete


def test_a_replaced_file_is_read_from_its_start(live: Production, tmp_path: Path) -> None:
    """Logs rotate: a file that begins otherwise than before is another one."""
    stream = write(tmp_path / "stream.jsonl", live.records(range(200, 210)))
    live.watch(stream, tmp_path / "watch")
    write(stream, live.records(range(220, 260)))
    found = live.watch(stream, tmp_path / "watch")
    assert found.records == 50


def test_following_ends_when_stopped(live: Production, tmp_path: Path) -> None:
    """Records that come while it waits are looked at; stopping looks once more and loses nothing."""
    stream = write(tmp_path / "stream.jsonl", live.records(range(200, 220)))
    looks: list[WatchResult] = []

    async def main() -> WatchResult:
        stop = asyncio.Event()

        def look(found: WatchResult) -> None:
            looks.append(found)
            if found.records == 20:
                write(stream, live.records(range(220, 240)), "a")
            elif found.records == 40:
                write(stream, live.records(range(240, 245)), "a")
                stop.set()

        return await watch_async(
            stream,
            live.run,
            out=tmp_path / "watch",
            follow=True,
            every=20,
            on_look=look,
            stop=stop,
            limits=Limits(concurrency=4),
        )

    found = asyncio.run(main())
    assert [one.records for one in looks] == [20, 40]
    assert found.answered == 40
    assert live.watch(stream, tmp_path / "watch").records == 45


def test_slices_have_alarms_of_their_own(live: Production, tmp_path: Path) -> None:
    """The values of a field are slices; an item may be without it."""
    records = [live.record(k, topic="ab"[k % 2]) if k % 5 else live.record(k) for k in STREAM]
    found = live.watch(write(tmp_path / "stream.jsonl", records), tmp_path / "watch", by_field="topic")
    names = {one.name: one.labelled for one in found.state.slices}
    assert names["a"] == sum(k % 2 == 0 and k % 5 != 0 for k in STREAM)
    assert sum(names.values()) == len(STREAM)
    assert len(names) == 3


def test_prompts_are_not_kept_if_the_reference_keeps_none(tmp_path: Path) -> None:
    """Then the first items of the stream are the anchors, and all other prompts are deleted once asked."""
    with production(tmp_path, settings={"keep_prompts": False}) as live:
        stream = write(tmp_path / "stream.jsonl", live.records(range(200, 204)))
        few = live.watch(stream, tmp_path / "watch")
        assert few.state.alarm("endpoint") is None
        write(stream, live.records(range(204, 300)), "a")
        found = live.watch(stream, tmp_path / "watch")
        endpoint = found.state.alarm("endpoint")
        assert endpoint is not None
        assert endpoint.observations == 4
    with WatchStore.read(tmp_path / "watch" / RUN_FILE) as store:
        assert all(not item.messages for item in store.items_between(0, 1000))
        kept = json.dumps(store.note("anchors"))
    assert 'Is \\"200\\"' in kept or 'Is \\"20' in kept


def test_a_limit_ends_the_watch_and_a_higher_one_goes_on(live: Production, tmp_path: Path) -> None:
    """The result says which limit was reached, and what waits; nothing is asked twice."""
    stream = write(tmp_path / "stream.jsonl", live.records())
    before = live.server.paid.copy()
    found = live.watch(stream, tmp_path / "watch", limits=Limits(concurrency=4, max_queries=250))
    assert found.stopped == "max_queries = 250 reached"
    assert found.waiting > 0
    assert (live.server.paid - before).total() <= 250
    whole = live.watch(stream, tmp_path / "watch")
    assert whole.answered == len(STREAM)
    assert whole.stopped is None
    paid = live.server.paid - before
    assert all(paid[f"q{k}"] == 1 for k in STREAM)


def test_an_item_that_always_fails_does_not_hold_up_the_others(
    live: Production, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others are answered, it counts as invalid after its last attempt, and the watch goes on."""
    usual = live.server._complete

    def failing(body: bytes, *, chat: bool) -> HttpResponse:
        return error(500, "not this one", None) if b'\\"205\\"' in body else usual(body, chat=chat)

    monkeypatch.setattr(live.server, "_complete", failing)
    stream = write(tmp_path / "stream.jsonl", live.records(range(200, 230)))
    limits = Limits(concurrency=4, attempts=2, backoff=0.001)
    found = live.watch(stream, tmp_path / "watch", limits=limits, every=15)
    assert (found.answered, found.invalid, found.waiting) == (29, 1, 0)
    assert found.stopped is None
    assert len(live.looks) == 2


@pytest.mark.parametrize("more", [{"rate": 0.0}, {"rate": 1.5}, {"every": 0}, {"max_cost_per_day": -1.0}])
def test_odd_numbers_are_refused(live: Production, tmp_path: Path, more: dict[str, Any]) -> None:
    """Before anything is read or asked."""
    with pytest.raises(InputError, match=next(iter(more))):
        watch(tmp_path / "stream.jsonl", live.run, **more)


def test_an_alarm_is_reported_once(live: Production, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per alarm, over restarts too; if the report fails, the next look reports it again."""
    answers = iter([False, True])
    reports: list[WatchResult] = []

    async def report(result: WatchResult) -> bool:
        reports.append(result)
        return next(answers)

    stream = write(tmp_path / "stream.jsonl", live.records(range(200, 220)))
    assert not live.watch(stream, tmp_path / "watch", on_alarm=report).raised
    assert reports == []
    monkeypatch.setattr(live.server, "behaviour", replace(live.server.behaviour, fingerprint="another"))
    for begin in (220, 230, 240):
        write(stream, live.records(range(begin, begin + 10)), "a")
        assert live.watch(stream, tmp_path / "watch", on_alarm=report).raised_names == ("endpoint",)
    assert [one.look for one in reports] == [2, 3]
    assert reports[0].facts
