"""How can this endpoint be audited? A few queries answer that before thousands are paid for.

Each of five ways needs something that some services refuse, and others accept and ignore:

- *logprobs* that are shown (METHOD 9);
- *thresholds*: ``logit_bias`` at temperature 0 (METHOD 2), about 200 queries to check;
- *temperature* without a bias (METHOD 6);
- *repeated answers* at the endpoint's own setting, if they vary (METHOD 9);
- *stated confidence*: the endpoint only has to answer in words.

They are tried in the order given until one is usable and the next one could not be better.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blindcal.endpoints import Endpoint
from blindcal.endpoints.query_format import (
    CONSTRAINTS,
    ConstraintName,
    FreeTextQuestion,
    LogprobQuestion,
    QuestionFormat,
    TokenQuestion,
)
from blindcal.endpoints.refusals import ITEM_STATUSES
from blindcal.endpoints.replies import TOP_LOGPROBS, fault_in, one_is_certain
from blindcal.errors import FatalError, InputError, UnsupportedError
from blindcal.estimate.contradiction import DrawnAnswers
from blindcal.probing.bias_checks import BiasChecks
from blindcal.probing.choice_checks import ChoiceChecks
from blindcal.probing.client import ProbeClient
from blindcal.probing.draw_checks import DrawChecks, constraint_acts
from blindcal.probing.findings import Probe, ProbeVerdict
from blindcal.probing.response_curve import together
from blindcal.records import INVALID, Item, Reply, Request, Targets, Way

ITEMS = 6  # number of items whose answers are forced
ITEMS_WITHOUT_BIAS = 12  # number of items to draw from if the bias is unusable
TOPS = (TOP_LOGPROBS, 5)  # numbers of logprobs to ask for: older APIs show 5 at most
FEW = 120  # items, of which an audit would cost less than all checks of its probe
STATED = 3  # number of items that are asked for a confidence in words
CONSTRAINED = 4  # number of items on which a constraint must act
MOST_OPEN = 0.05  # of the probability of an answer, on average; the intervals are wider by that much
LEGIBLE = 5 / 6  # least share of items whose logprobs must show an answer word


@dataclass(frozen=True, slots=True)
class ProbeQuestions:
    """How the ways without a bias ask; ``None`` skips a way.

    ``plain`` are answer forms in order of preference; ``logprobs`` makes the form for a number of logprobs.
    """

    plain: tuple[TokenQuestion | FreeTextQuestion, ...]
    logprobs: Callable[[int], LogprobQuestion] | None = None
    stated: QuestionFormat | None = None


async def probe_endpoint(
    endpoint: Endpoint,
    items: Sequence[Item],
    targets: Targets,
    *,
    ways: Sequence[Way] = ("thresholds", "temperature"),
    questions: ProbeQuestions | None = None,
    no_ids: str = "",
    constrained: bool = False,
    offset: float = 50.0,
    limit: float = 100.0,
    seed: int = 0,
    few: bool = False,
) -> Probe:
    """Find out how ``endpoint`` can be audited, on a few of the audit's own ``items``.

    ``ways`` are tried in order until one is usable. ``questions`` say how to ask without a bias,
    by default for one token. ``no_ids`` says why token ids are not known. If answers will be drawn without a
    bias anyway, ``constrained`` looks for a field that allows only the answers. ``offset`` is the audit's
    common bias C and ``limit`` the largest bias that the service documents. ``seed`` chooses the items and
    the seeds of drawn answers. If the audit has so ``few`` items that the probe would cost more, its dearest
    checks are left out, and findings say so. Raises `FatalError` if the key, the model or the address is
    wrong.
    """
    if not items:
        raise InputError("a probe needs at least one item")
    rng = np.random.default_rng(seed)
    chosen = [items[int(k)] for k in rng.permutation(len(items))[:ITEMS_WITHOUT_BIAS]]
    client = ProbeClient(endpoint, targets, seed)
    questions = questions or ProbeQuestions((TokenQuestion(targets, biased=False),))
    draws = DrawChecks(client, chosen, questions.plain[0])
    unchecked = f"not checked for fewer than {FEW} items" if few else ""
    bias = BiasChecks(client, draws, chosen[:ITEMS], offset, limit, unchecked)
    return await _Probing(client, bias, questions, no_ids).run(ways, constrained)


class _Probing:
    def __init__(self, client: ProbeClient, bias: BiasChecks, questions: ProbeQuestions, no_ids: str) -> None:
        self.client, self.questions, self.no_ids = client, questions, no_ids
        self.find = client.find
        self.bias, self.draws = bias, bias.draws
        self.one_token = True  # whether a reply of one token has content
        self.cold: float | None = 0.0  # the temperature of greedy queries, if the endpoint takes one
        self.legible = 0  # greedy answers that could be read
        self.plain: dict[str, int] = {}  # the greedy answers by item
        self.top = 0
        self.lie = ""  # why the logprobs shown cannot be those of the answers
        self.constraint: ConstraintName | None = None
        self.ways: dict[Way, str] = {}

    async def run(self, ways: Sequence[Way], constrained: bool) -> Probe:
        if broken := await self._broken():
            return self._conclude(broken)
        checks: dict[Way, Callable[[], Awaitable[str]]] = {
            "logprobs": self._logprobs,
            "thresholds": self._thresholds,
            "temperature": self._temperature,
            "repeated answers": self._repeated,
            "stated confidence": self._stated,
        }
        if "logprobs" not in ways and self.one_token:
            await self._look_for_logprobs()
        for way in ways:
            self.ways[way] = await checks[way]()
            if not self.ways[way]:
                break
        if constrained and "temperature" not in self.ways:
            await self._constrain()
        return self._conclude()

    # The ways: each returns why it is unusable, empty if it is usable

    async def _logprobs(self) -> str:
        make, question = self.questions.logprobs, "logprobs"
        if make is None or not self.one_token:
            return "the answer is not the first token of the reply"
        shown = await self._look_for_logprobs()
        if not shown:
            return "logprobs are hidden"
        if fault := next(filter(None, (fault_in(reply.logprobs) for reply in shown.values())), None):
            return self.find(question, "bad", f"no: {fault}", fault)
        form, total = make(self.top), len(self.bias.items)
        read = sum(form.parse(reply).answer != INVALID for reply in shown.values())
        if read < LEGIBLE * total:
            trouble = f"the logprobs of {total - read} of {total} items show no answer word"
            return self.find(question, "caution", f"shown, but {trouble}", trouble)
        left_open = float(np.mean([form.parse(reply).left_open for reply in shown.values()]))
        if left_open > MOST_OPEN:
            trouble = f"so few logprobs are shown that {left_open:.0%} of the probability is left open"
            return self.find(question, "bad", f"no: {trouble}", trouble)
        if self.lie:
            return self.find(question, "bad", f"no: {self.lie}", self.lie)
        return "" if self.no_ids or self.cold is None else await self.bias.agrees_with_logprobs()

    def _lie(self, shown: Mapping[str, Reply]) -> str:
        """Why logprobs cannot be those of the answers; empty if they can."""
        form, rows = LogprobQuestion(self.client.targets.words), []
        if shown and all(one_is_certain(reply.logprobs or {}) for reply in shown.values()):
            return "all probabilities shown are 0 or 1, which are not those of a model"
        for name, reply in shown.items():
            read = form.parse(reply)
            for said in (read.said, self.plain[name]):
                if said is not None and INVALID not in (said, read.answer):
                    rows.append((said, read.answer, read.low, read.high))
        drawn = DrawnAnswers.of(np.array(rows, np.float64), several=bool(self.client.targets.answers))
        return f"the logprobs contradict {drawn.unlikely} of {len(rows)} answers" if drawn.surprising else ""

    async def _thresholds(self) -> str:
        if not self.one_token:
            return "the answers are longer than one token"
        if self.cold is None:
            return "temperature 0 is refused, which thresholds need"
        if self.no_ids:
            return self.find("token ids", "bad", f"not known: {self.no_ids}", "its token ids are not known")
        several = bool(self.client.targets.answers)
        return await (ChoiceChecks(self.client, self.bias, self.plain) if several else self.bias).check()

    async def _temperature(self) -> str:
        if self.cold is None:
            return "temperature is not accepted"
        if self.bias.hopeless:
            return self.ways["thresholds"]
        await self._choose_form()
        plain = self.draws.question
        await self._constrain()
        trouble = await self.draws.temperature()
        self.draws.question = plain  # other ways ask the endpoint as it is configured
        return trouble

    async def _repeated(self) -> str:
        await self._choose_form()
        return await self.draws.repeated()

    async def _stated(self) -> str:
        form, question = self.questions.stated, "states its confidence"
        trouble = "it does not state its confidence"
        if form is None:
            return "not tried"
        items = self.bias.items[:STATED]
        try:
            requests = (self._cold_request(form, item) for item in items)
            answers = await together(*(self.client.answer(request, form) for request in requests))
        except FatalError as error:
            return self.find(question, "bad", f"no: {error}", trouble)
        if answers.count(INVALID) * 2 >= len(answers):
            answer = f"no: {answers.count(INVALID)} of {len(answers)} answers state none"
            return self.find(question, "bad", answer, trouble)
        return self.find(question, "good", "yes, when asked to")

    # What they need

    async def _broken(self) -> str:
        """Choose a form that is answered, and leave out refused items; returns why no form is answered."""
        for form in self.questions.plain:
            if answered := await self._answered(form):
                self.draws.items = answered
                self.bias.items = answered[:ITEMS]
                self.draws.question = form
                self.one_token = form.max_tokens == 1
                return ""
        assert self.client.broken is not None
        message = self.client.broken.message
        return self.find("answers at all", "bad", message, message)

    async def _answered(self, form: QuestionFormat) -> list[Item]:
        """The first few items that are answered, then those not tried; empty if none is answered."""
        answered: list[Item] = []
        untried, fatal, self.legible = list(self.draws.items), None, 0
        left = ITEMS  # items to try until one is answered
        while untried and len(answered) < ITEMS and (answered or left):
            count = ITEMS - len(answered) if answered else 1  # the first shows which fields are accepted
            tried, untried, left = untried[:count], untried[count:], left - 1
            outcomes = await asyncio.gather(
                *(self._greedy(form, item) for item in tried), return_exceptions=True
            )
            for item, outcome in zip(tried, outcomes, strict=True):
                if isinstance(outcome, Reply):
                    answered.append(item)
                    self.plain[item.id] = form.parse(outcome).answer
                    self.legible += self.plain[item.id] != INVALID
                elif isinstance(outcome, FatalError) and outcome.status in ITEM_STATUSES:
                    fatal = outcome
                elif outcome is not None:
                    raise outcome
        if not answered and fatal is not None:
            raise fatal
        return [*answered, *untried] if answered else []

    async def _greedy(self, form: QuestionFormat, item: Item) -> Reply | None:
        try:
            return await self.client.reply(self._cold_request(form, item))
        except UnsupportedError as error:
            if error.parameter != "temperature" or self.cold is None:
                raise
            self.cold = None
            self.find("temperature accepted", "caution", f"no: {error}")
            return await self.client.reply(self._cold_request(form, item))

    def _cold_request(self, form: QuestionFormat, item: Item) -> Request:
        return replace(form.request(item.messages, 0.0, 0.0), temperature=self.cold)

    async def _choose_form(self) -> None:
        current = self.questions.plain.index(self.draws.question)
        for form in self.questions.plain[current + 1 :]:
            if 2 * self.legible > len(self.bias.items):
                return
            before = self.legible
            if await self._answered(form) and self.legible > before:
                self.draws.question = form
            else:
                self.legible = before

    async def _constrain(self) -> None:
        """Hot answers are often not answer words."""
        question = self.draws.question
        if not isinstance(question, TokenQuestion):
            return
        for name, constraint in CONSTRAINTS.items():
            if constraint.by_id and self.no_ids:
                continue
            items = self.bias.items[:CONSTRAINED]
            if await constraint_acts(name, self.client.asked, items, self.client.targets):
                self.constraint = name
                self.draws.question = replace(question, constraint=name, max_tokens=constraint.max_tokens)
                self.find("only the answers allowed", "good", f"yes, by {name}")
                return

    async def _look_for_logprobs(self) -> dict[str, Reply]:
        shown: dict[str, Reply] = {}
        for self.top in TOPS:
            try:
                first, *others = self.bias.items
                if (reply := await self._shown(first)) is not None:
                    replies = [reply, *await together(*map(self._shown, others))]
                    pairs = zip(self.bias.items, replies, strict=True)
                    shown = {item.id: reply for item, reply in pairs if reply is not None}
                break
            except FatalError as error:
                shown = {}
                if isinstance(error, UnsupportedError) and error.parameter == "logprobs":
                    break
        self.lie = self._lie(shown)
        for name, reply in () if self.lie else shown.items():
            self._compare_tokens(name, reply.logprobs or {})
        self.top = self.top if shown else 0
        answer = f"shown, {self.top} at most" if shown else "hidden, as a black box has them"
        self.find("logprobs", "good", answer)
        return shown

    async def _shown(self, item: Item) -> Reply | None:
        """The reply about an item if it shows logprobs."""
        reply = await self.client.reply(Request(item.messages, temperature=1.0, top_logprobs=self.top))
        return reply if reply is not None and reply.logprobs else None

    def _compare_tokens(self, item: str, logprobs: Mapping[str, float]) -> None:
        shown = {
            number: max(logprobs[token.text] for token in side if token.text in logprobs)
            for number, side in enumerate(self.client.targets.by_answer)
            if any(token.text in logprobs for token in side)
        }
        if self.client.targets.answers and len(shown) > 1:
            best, second = sorted(shown, key=lambda number: (shown[number], number), reverse=True)[:2]
            self.client.pairs[item] = second, best
        up, down = self.client.pair(item)
        if up in shown and down in shown:
            self.bias.gaps[item] = shown[up] - shown[down]

    def _conclude(self, broken: str = "") -> Probe:
        client, bias = self.client, self.bias
        if client.longest > 1 and self.one_token:
            billed = f"no: up to {client.longest} were billed, so max_tokens is ignored or the model reasons"
            self.find("one token out", "caution", billed)
        verdict, reason = self._verdict(broken)
        return Probe(
            **client.report,
            verdict=verdict,
            reason=reason,
            offset=bias.offset,
            max_shift=bias.max_shift,
            clamp=bias.clamp,
            jitter=bias.jitter,
            crowd_jitter=bias.crowd_jitter,
            scale=bias.scale,
            outside=client.outside / client.compared if client.compared else None,
            ways=self.ways,
            top_logprobs=self.top,
            at_once=self.draws.at_once,
            tempered=self.cold is not None,
            answer_format=self.draws.question.form,
            constraint=self.constraint,
            flips=dict(bias.flips.shifts),
        )

    def _verdict(self, broken: str) -> tuple[ProbeVerdict, str]:
        """The best usable way, and what is wrong with better ones or what to mind."""
        *others, last = dict.fromkeys(filter(None, self.ways.values())) or ("",)
        wrong = f"{', '.join(others)}, and {last}" if others else last
        usable = next((way for way, trouble in self.ways.items() if not trouble), None)
        if usable is None:
            return "not auditable", broken or wrong
        if usable == "logprobs":
            return usable, "logprobs are shown"
        if usable == "thresholds":
            worst = [name for name, finding in self.client.findings.items() if finding.outcome == "caution"]
            return usable, f"the bias acts as it should{'; mind: ' if worst else ''}{', '.join(worst)}"
        return usable, wrong
