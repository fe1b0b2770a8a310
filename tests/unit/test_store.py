"""The run on disk: what is promised about crashes, settings, versions and two processes at once."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blindcal.errors import InputError, StoreError
from blindcal.records import Item, Message, Round, Usage
from blindcal.store import run_file
from blindcal.store.run_file import StoredReply, in_use
from blindcal.store.run_store import UNASKED, Store
from blindcal.text import printable

ITEMS = [Item(f"i{k}", k % 2, (Message("user", f"question {k}"),), group="g") for k in range(3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "run.sqlite"


def saved(query: int, answer: int = 1, text: str = "Yes", **more: Any) -> StoredReply:
    paid = {"prompt_tokens": 100, "completion_tokens": 1, "cached_tokens": 10}
    return StoredReply(query=query, answer=answer, text=text, **(paid | more))


def keep(store: Store, *answers: StoredReply) -> None:
    async def save_all() -> None:
        await asyncio.gather(*(store.save(answer) for answer in answers))

    asyncio.run(save_all())


def a_round(size: int) -> Round:
    return Round(np.arange(size), np.linspace(-3, 3, size), np.zeros(size))


def test_everything_kept_is_there_after_reopening(path: Path) -> None:
    """Settings, items, rounds, answers and notes survive closing."""
    with Store.open(path) as store:
        assert store.begin({"model": "m"}, ITEMS)
        store.add_round(a_round(3))
        store.add_round(a_round(2))
        store.set_note("ready", {"verdict": "good"})
        keep(store, saved(3, 0, "No"))
    with Store.open(path) as store:
        assert not store.begin({"model": "m"}, ITEMS)
        assert [len(r) for r in store.rounds()] == [3, 2]
        np.testing.assert_array_equal(store.rounds()[0].shifts, a_round(3).shifts)
        assert store.answers(0, 3).tolist() == [UNASKED] * 3
        assert store.answers(3, 2).tolist() == [0, UNASKED]
        assert store.note("ready") == {"verdict": "good"}
        assert store.note("noise") is None
        assert store.item(1) == ("i1", 1, "g")
        assert store.usage() == Usage(
            queries=1, attempts=1, prompt_tokens=100, completion_tokens=1, cached_tokens=10, invalid=0
        )


def test_a_saved_answer_is_on_disk(path: Path) -> None:
    """When ``save`` returns, a reader of the file sees the answer."""

    async def save_and_look() -> None:
        for query in range(5):
            await store.save(saved(query))
            with Store.read(path) as reader:
                assert reader.usage().queries == query + 1

    with Store.open(path) as store:
        store.begin({}, ITEMS)
        asyncio.run(save_and_look())


def test_answers_are_committed_in_groups(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that wait together share commits instead of having one each."""
    commits: list[int] = []
    insert = Store._insert

    def counted(self: Store, group: list[StoredReply]) -> None:
        commits.append(len(group))
        insert(self, group)

    monkeypatch.setattr(Store, "_insert", counted)

    async def save_all() -> None:
        await asyncio.gather(*(store.save(saved(query)) for query in range(500)))

    with Store.open(path) as store:
        asyncio.run(save_all())
        assert store.usage().queries == 500
    assert len(commits) <= 3


def test_one_query_is_never_answered_twice(path: Path) -> None:
    """A second answer to a query is an error, and the first one stands."""

    async def twice() -> None:
        await store.save(saved(0, 1))
        with pytest.raises(StoreError, match="UNIQUE"):
            await store.save(saved(0, 0))

    with Store.open(path) as store:
        asyncio.run(twice())
        assert store.answers(0, 1).tolist() == [1]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.integers(0, 200), st.tuples(st.sampled_from([1, 0, -1]), st.text(max_size=30)), max_size=60
    )
)
def test_any_answers_come_back_as_they_went_in(
    tmp_path_factory: pytest.TempPathFactory, answers: dict[int, tuple[int, str]]
) -> None:
    """Whatever is saved in whatever order is read back the same, texts in their printable form."""
    path = tmp_path_factory.mktemp("store") / "run.sqlite"
    kept = {q: (a, printable(text)) for q, (a, text) in answers.items()}

    async def save_all() -> None:
        await asyncio.gather(*(store.save(saved(q, a, text)) for q, (a, text) in kept.items()))

    with Store.open(path) as store:
        asyncio.run(save_all())
    with Store.read(path) as store:
        column = store.answers(0, 201)
        assert {int(q): int(column[q]) for q in np.flatnonzero(column != UNASKED)} == {
            q: a for q, (a, _) in kept.items()
        }
        assert {q: (a, text) for q, a, text, _ in store.texts()} == kept
        assert store.usage().invalid == sum(a == -1 for a, _ in kept.values())


def test_other_settings_are_refused_with_the_difference(path: Path) -> None:
    """A run that has answers and was begun with other settings says which ones, then and now."""
    with Store.open(path) as store:
        store.begin({"model": "a", "seed": 1, "same": [1]}, ITEMS)
        keep(store, saved(0))
        with pytest.raises(InputError, match='model: "a" then, "b" now; seed: 1 then, null now') as raised:
            store.begin({"model": "b", "same": [1]}, ITEMS)
        assert "same" not in str(raised.value).replace("same settings", "")


def test_other_settings_replace_those_of_a_run_without_answers(path: Path) -> None:
    """Whoever corrects an address or follows the probe's advice need not choose another folder."""
    with Store.open(path) as store:
        store.begin({"model": "a"}, ITEMS)
        store.set_note("ready", {"probe": "of another endpoint"})
        keep(store, StoredReply(kind="probe", body="reply"))
        assert store.begin({"model": "b"}, ITEMS[:2])
        assert len(store.items().ids) == 2
        assert store.note("ready") is None
        assert store.reply_body("probe", 0, 0) is None


def test_a_failure_while_items_are_read_leaves_no_half_run(path: Path) -> None:
    """If reading the items fails, nothing of the run was begun."""

    def broken() -> object:
        yield ITEMS[0]
        raise InputError("line 2")

    with Store.open(path) as store:
        with pytest.raises(InputError, match="line 2"):
            store.begin({"a": 1}, broken())  # type: ignore[arg-type]  # a generator serves
        assert store.begin({"a": 2}, ITEMS)
        assert len(store.items().ids) == 3


def test_two_processes_do_not_share_a_run(path: Path) -> None:
    """A second holder is refused while the first lives, and welcome when it has gone."""
    with Store.open(path):
        assert in_use(path)
        with pytest.raises(StoreError, match="another process"):
            Store.open(path)
    assert not in_use(path)
    opened = f"Store.open(pathlib.Path({str(path)!r}))"
    code = f"import os, pathlib; from blindcal.store.run_store import Store; {opened}; os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    Store.open(path).close()


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    """No other program's database, file or version is taken for a run; a crash may leave an empty file."""
    path, text = tmp_path / "run.sqlite", tmp_path / "text.sqlite"
    path.touch()
    Store.open(path).close()
    for change, message in (
        ("PRAGMA user_version = 2", "in format 2, and this version of blindcal reads 1"),
        ("PRAGMA user_version = 0", "in format 0, and this version of blindcal reads 1"),
        ("PRAGMA application_id = 7", "another program"),
    ):
        with closing(sqlite3.connect(path)) as db:
            db.execute(change)
        for opening in (Store.open, Store.read):
            with pytest.raises(StoreError, match=message):
                opening(path)
    text.write_text("hello " * 1000)
    with pytest.raises(StoreError, match="not a run file"):
        Store.open(text)
    with pytest.raises(StoreError, match="no such run"):
        Store.read(tmp_path / "none.sqlite")


def test_tables_are_made_together_or_not_at_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose tables could not all be made is as good as a new one."""
    tables = run_file._TABLES
    monkeypatch.setattr(run_file, "_TABLES", f"{tables}; CREATE TABLE notes (clash)")
    with pytest.raises(StoreError, match="already exists"):
        Store.open(path)
    monkeypatch.setattr(run_file, "_TABLES", tables)
    with Store.open(path) as store:
        assert store.begin({"a": 1}, ITEMS)


def test_reading_answers_of_a_damaged_file_is_a_store_error(path: Path) -> None:
    """Whatever SQLite says while answers are read, the error names the file."""
    with Store.open(path) as store:
        store._db.execute("DROP TABLE replies")
        with pytest.raises(StoreError, match=r"run\.sqlite: .*no such table"):
            store.answers(0, 1)
        with pytest.raises(StoreError, match=r"run\.sqlite: .*no such table"):
            list(store.texts())


def test_what_is_forgotten_still_counts_as_spent(path: Path) -> None:
    """Forgotten outcomes and replies of the probe are asked again, and their cost stays."""
    with Store.open(path) as store:
        keep(
            store,
            saved(0),
            saved(1, -1, "(no choices)", attempts=3, unusable=True),
            StoredReply(kind="probe", prompt_tokens=7, body='{"text": "Yes"}'),
            StoredReply(kind="probe", nth=1, queries=0, body='{"error": "filtered"}'),
        )
        assert store.usage("probe") == Usage(queries=1, attempts=2, prompt_tokens=7)
        assert store.unusable(0, 2).tolist() == [1]
        store.forget("design", [1])
        store.forget("probe")
        assert store.answers(0, 2).tolist() == [1, UNASKED]
        assert store.reply_body("probe", 0, 0) is None
        assert store.usage() == Usage(
            queries=1, attempts=6, prompt_tokens=207, completion_tokens=2, cached_tokens=20, wasted=2
        )
        keep(store, saved(1))
        assert store.answers(0, 2).tolist() == [1, 1]


@pytest.mark.parametrize("move", [False, True])
def test_a_file_that_is_gone_is_written_no_more(path: Path, move: bool) -> None:
    """A run file that was deleted, or moved and replaced by another one, is noticed at the next write."""
    with Store.open(path) as store:
        keep(store, saved(0))
        path.rename(path.with_name("elsewhere"))
        if move:
            Store.open(path.with_name("other.sqlite")).close()
            path.with_name("other.sqlite").rename(path)
        with pytest.raises(StoreError, match=r"run\.sqlite was moved or deleted during the run"):
            keep(store, saved(1))
        with pytest.raises(StoreError, match="was moved or deleted"):
            store.set_note("seconds", 1)


def test_a_full_disk_stops_the_run_not_the_file(path: Path) -> None:
    """An answer that cannot be written is an error, and what was written stays."""

    async def until_full() -> None:
        await store.save(saved(0))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match="full"):
            await asyncio.gather(*(store.save(saved(q, text="x" * 200)) for q in range(1, 500)))

    with Store.open(path) as store:
        asyncio.run(until_full())
    with Store.open(path) as store:
        assert store.answers(0, 1).tolist() == [1]
