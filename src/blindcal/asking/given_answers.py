"""Answer a design from the confidences that a file gives: nothing is asked, and all are stored at once."""

from __future__ import annotations

import itertools

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
            answers, p, shown = zip(*(items[item].given for item in asked.items.tolist()), strict=True)
            store.add_readings(first, answers, logit(p).tolist(), shown)
        answered = answered.with_round(asked, store.answers(first, len(asked)).astype("int64"))
    raise AssertionError
