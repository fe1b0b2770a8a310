"""Answer a design from the confidences that a file gives: nothing is asked, and all are stored at once."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import logit

from blindcal.asking.ask_design import RunOutcome
from blindcal.asking.job import NumberedItems
from blindcal.design import Design
from blindcal.records import AnswerTable, Usage
from blindcal.store.run_store import UNASKED, Store


def answer_from_file(design: Design, items: NumberedItems, store: Store, *, begin: int = 0) -> RunOutcome:
    """Store the rounds of a design from number ``begin`` on, with the answers that the items give."""
    answered = AnswerTable.empty()
    for number in itertools.count(begin):
        asked = next(iter(store.rounds(number)), None)
        if asked is None:
            asked = design.next_round(answered)
            if asked is None:
                return RunOutcome(answered, Usage())
            store.add_round(asked)
        first = store.first_query(number)
        if store.answers(first, 1)[0] == UNASKED:
            given = np.array([items[item].given for item in asked.items.tolist()])
            store.add_readings(first, given[:, 0].astype(np.int64), logit(given[:, 1]))
        answered = answered.with_round(asked, store.answers(first, len(asked)).astype(np.int64))
    raise AssertionError
