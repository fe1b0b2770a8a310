"""Finished runs that tests share: each is made once per test run, when a test first needs it."""

from __future__ import annotations

import fcntl
import random
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from answering import LETTERS, write_choices
from blindcal.asking.run_context import Limits
from blindcal.auditing.audit import audit
from blindcal.items.catalogue import open_items
from blindcal.records import FloatArray, IntArray
from blindcal.report import page
from blindcal.results.result import AuditResult
from blindcal.results.run import Run, open_run
from blindcal.settings import Settings
from blindcal.simulation.recording import Recording
from blindcal.simulation.replay import running
from deciding import TEMPLATE, model, write_items
from misbehaving import Behaviour, Server


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What is special about a run: its questions, its settings, its endpoint and its limits."""

    n: int = 400
    answers: int = 2
    columns: Mapping[str, Callable[[int], str]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    behaviour: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None


KINDS = {
    "plain": Kind(),
    "groups": Kind(columns={"group": lambda k: f"g{k // 5}" if k < 200 else f"alone{k}"}),
    "parts": Kind(
        columns={"topic": lambda k: ("law", "law", "physics", "cooking")[k % 4]},
        settings={"by_field": "topic"},
    ),
    "choices": Kind(n=240, answers=4, settings={"queries": 2}),
    "logprobs": Kind(settings={"method": "logprobs"}, behaviour={"logprobs": True}),
    "repeated": Kind(n=200, settings={"method": "repeated", "queries": 3}),
    "sampling": Kind(n=200, settings={"method": "sampling", "queries": 4}),
    "blind": Kind(settings={"method": "blind", "bins": 5}),
    "noisy": Kind(settings={"method": "latent"}, behaviour={"flipped": 0.04, "seed": 2}),
    "stopped": Kind(limits=Limits(max_queries=300)),
}


def truth_of(kind: Kind) -> tuple[IntArray, FloatArray]:
    """Labels, and a model that is too sure of itself: P(Yes) of each item, or its logits of k answers."""
    if kind.answers == 2:
        return model(kind.n, 7)
    rng = np.random.default_rng(7)
    logits = 2.0 * rng.standard_normal((kind.n, kind.answers))
    gumbel = rng.gumbel(size=logits.shape)
    return (0.6 * logits + gumbel).argmax(axis=1), logits


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The folder of a finished run, its items, and the model that it asked."""

    folder: Path
    items: Path
    kind: Kind
    port_file: Path

    @property
    def truth(self) -> FloatArray:
        return truth_of(self.kind)[1]

    @property
    def result(self) -> AuditResult:
        return AuditResult.load(self.folder / "result.json")

    def opened(self) -> Run:
        return open_run(self.folder)

    @property
    def settings(self) -> Settings:
        """The settings that the run was made with."""
        usual = {"model": "replay", "resamples": 20, "base_url": f"http://127.0.0.1:{self._port}/v1"}
        if self.kind.answers == 2:
            usual["template"] = TEMPLATE
        return Settings(**{**usual, **self.kind.settings})

    @contextmanager
    def serving(self, **behaviour: Any) -> Iterator[Server]:
        """The endpoint of the run at the same address, for one test at a time: the run can go on."""
        questions = list(open_items(self.items, self.settings.prompt))
        ids, answers = [item.id for item in questions], self.kind.answers
        if answers == 2:
            recording = Recording.from_probabilities(ids, self.truth)
        else:
            recording = Recording.of_choices(ids, self.truth, LETTERS[:answers])
        how = Behaviour(**{**self.kind.behaviour, **behaviour})
        with locked(self.port_file), running(Server(recording, questions, how, port=self._port)) as server:
            yield server

    @property
    def _port(self) -> int:
        return int(self.port_file.read_text())


class FinishedRuns:
    """The finished runs of a test run, in a folder that all its workers share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def original(self, name: str) -> FinishedRun:
        """The run of this name, to read from; no test changes it."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        run = FinishedRun(
            folder=folder / "run", items=folder / "items.jsonl", kind=KINDS[name], port_file=folder / "port"
        )
        with locked(folder / "lock"):
            if not (folder / "done").exists():
                shutil.rmtree(run.folder, ignore_errors=True)
                _make(run)
                (folder / "done").touch()
        return run

    def copy(self, name: str, into: Path) -> FinishedRun:
        """The run of this name, copied into a folder as ``run`` and ``items.jsonl``."""
        made = self.original(name)
        shutil.copytree(made.folder, into / "run")
        shutil.copy(made.items, into / "items.jsonl")
        return FinishedRun(
            folder=into / "run", items=into / "items.jsonl", kind=made.kind, port_file=made.port_file
        )


def _make(run: FinishedRun) -> None:
    kind, labels = run.kind, truth_of(run.kind)[0]
    columns = {name: [value(k) for k in range(kind.n)] for name, value in kind.columns.items()}
    if kind.answers == 2:
        write_items(run.items, labels, **columns)
    else:
        write_choices(run.items, labels, [kind.answers] * kind.n, **columns)
    run.port_file.write_text(str(_free_port()))
    with run.serving():
        audit(run.items, run.settings, out=run.folder, limits=kind.limits)


def _free_port() -> int:
    """A port that no one listens on, and below those that systems hand out by themselves."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                return port


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file against all other processes and threads that lock it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def without_page() -> Iterator[None]:
    """Let audits write an empty report page; drawing it takes half of the time of a small audit."""
    drawn = page.render
    page.render = lambda result: ""  # noqa: ARG005 - named as its callers name it
    try:
        yield
    finally:
        page.render = drawn
