"""Pass each look of a watch to the monitor, from the run file alone.

New answers, and pairs of a label and an answer that have just become complete, come in the order in which
their items were first seen. So the order of the labels within a look does not matter, and a restart gives the
same numbers again.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logit

from blindcal.errors import NotIdentifiedError
from blindcal.estimate.latent.fitting import fit_problem
from blindcal.estimate.problem import Problem
from blindcal.query_seeds import draw_of_name
from blindcal.records import INVALID, AnswerTable, FloatArray
from blindcal.results.monitor import Monitor
from blindcal.results.run import Run
from blindcal.results.watch_result import WindowCurve
from blindcal.store.watch_store import Look, WatchStore
from blindcal.watching.anchors import is_wrong, noted_anchors

WINDOW, LEAST_WINDOW = 500, 100
_RESAMPLES = 200


def thresholds(seed: int, ids: list[str]) -> FloatArray:
    """Thresholds of items, uniform on (0, 1), each determined by the id."""
    return np.array([draw_of_name(seed, name, "threshold") for name in ids])


class WatchFeed:
    """Passes looks to a monitor, one after the other; ``sliced`` if items have parts."""

    def __init__(self, monitor: Monitor, store: WatchStore, seed: int, *, sliced: bool) -> None:
        self.monitor = monitor
        self._store, self._seed, self._sliced = store, seed, sliced
        self._t, self._answers = np.empty(0), np.empty(0, np.int64)
        self._parts: list[str | None] = []
        self._labelled: list[tuple[int, int]] = []  # item and label, in order
        self._expected = False
        self.anchors = 0  # number of anchor answers passed on

    @property
    def answered(self) -> int:
        """Number of items passed on, invalid answers included."""
        return self._answers.size

    @property
    def invalid(self) -> int:
        """Number of invalid answers among them."""
        return int((self._answers == INVALID).sum())

    def add(self, look: Look) -> None:
        """Pass on what a finished look brought."""
        assert look.answered is not None
        assert look.anchors is not None
        first, end = self.answered, look.answered
        names = self._store.names_between(first, end)
        t = thresholds(self._seed, [name for name, _ in names])
        answers = self._store.answers(first, end - first).astype(np.int64)
        self._t, self._answers = np.concatenate([self._t, t]), np.concatenate([self._answers, answers])
        self._parts += [part for _, part in names]
        valid = first + np.flatnonzero(answers != INVALID)
        if valid.size:
            self.monitor.add_answers(self._t[valid], self._answers[valid], valid)
        labels = self._store.new_labels(look, first) | self._store.labels_between(look, first, end)
        self._add_labelled(labels)
        self._expect_anchors()
        answered = self._store.anchor_answers(self.anchors, look.anchors)
        if answered:
            up, wrong = np.array([[one.up, is_wrong(one)] for one in answered]).T
            self.monitor.add_anchors(up, wrong)
        self.anchors = look.anchors

    def _expect_anchors(self) -> None:
        known = None if self._expected else noted_anchors(self._store)
        if known is not None and known.anchors:
            self._expected = True
            self.monitor.expect_anchors(known.up_wrong, known.up_asked, known.down_wrong, known.down_asked)

    def _add_labelled(self, labels: dict[int, int]) -> None:
        items = np.array(sorted(labels), np.int64)
        items = items[self._answers[items] != INVALID]
        if not items.size:
            return
        known = np.array([labels[int(item)] for item in items], np.int64)
        parts = [self._parts[int(item)] for item in items] if self._sliced else None
        self.monitor.add_labelled(known, self._t[items], self._answers[items], items, parts)
        self._labelled += zip(items.tolist(), known.tolist(), strict=True)

    def window(self, reference: Run) -> WindowCurve | None:
        """Reliability curve of the latest labelled items; ``None`` if they do not suffice for one."""
        last = np.array(self._labelled[-WINDOW:], np.int64).reshape(-1, 2)
        if len(last) < LEAST_WINDOW:
            return None
        (items, labels), most = last.T, reference.max_shift
        shifts = np.clip(-logit(self._t[items]), -most, most)
        places, none = np.arange(items.size), np.zeros(items.size)
        table = AnswerTable(places, shifts, none, self._answers[items])
        problem = Problem.of_answers(labels, table, noise=reference.noise)
        try:
            fit = fit_problem(problem, resamples=_RESAMPLES)
            curve, ece = fit.curve, fit.ece
        except NotIdentifiedError:  # for example, all labels are the same
            return None
        known = reference.result
        return WindowCurve(
            items=items.size, curve=curve, ece=ece, reference=known.curve, reference_ece=known.ece
        )
