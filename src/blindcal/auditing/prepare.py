"""Prepare an audit: begin its run, choose tokens and method, probe the endpoint, and make the design."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blindcal.asking.controls import LEAST_MARGIN, KnownFlip
from blindcal.asking.governor import GovernedEndpoint, Governor
from blindcal.asking.run_context import Limits, RunContext, blocking, ignore
from blindcal.auditing.item_sample import sample_stages
from blindcal.auditing.method_choice import (
    MethodOption,
    best_option,
    choice_line,
    method_options,
)
from blindcal.auditing.prepared import Prepared, Session
from blindcal.design import Design
from blindcal.endpoints import Endpoint, tokens
from blindcal.endpoints.address import DECISION_APIS, Api
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import (
    STATED_TOKENS,
    ConfidenceQuestion,
    DecisionQuestion,
    FreeTextQuestion,
    LogprobQuestion,
    TokenQuestion,
)
from blindcal.endpoints.replies import TOP_LOGPROBS
from blindcal.endpoints.tokens import Choice
from blindcal.errors import EndpointError, InputError, UnfitError
from blindcal.items.catalogue import open_items
from blindcal.items.question_files import Items
from blindcal.methods import ASSUMED, AUTO, METHODS, ONCE, Method, count_queries, make_design
from blindcal.planning.plan import has_few, probe_queries
from blindcal.prices import CHARACTERS_A_TOKEN
from blindcal.probing.decision_checks import probe_decisions
from blindcal.probing.findings import Probe, ProbeVerdict
from blindcal.probing.probe import ITEMS_WITHOUT_BIAS, TOPS, ProbeQuestions, probe_endpoint
from blindcal.probing.spoken_api import find_api
from blindcal.records import INVALID, IntArray, Item, Progress, Semantics, Targets, Token, Usage, Way
from blindcal.results.result import Truth, read_truth
from blindcal.settings import Settings
from blindcal.text import printable

_CLEARLY = 1.5  # factor by which the estimated cost of the probe may exceed the limit
PILOTS, PROBED = 4, ITEMS_WITHOUT_BIAS


@dataclass(frozen=True, kw_only=True)
class ReadyAudit(Session):
    """A session that is ready to ask; ``stages`` is ``None`` if all items join at once."""

    prepared: Prepared
    design: Design
    stages: list[IntArray] | None
    planned: int
    truth: Truth | None = None


async def prepare(
    session: Session,
    governor: Governor,
    *,
    oracle: Path | None = None,
    targets: Targets | None = None,
    force: bool = False,
) -> ReadyAudit:
    """Begin or continue a run; raises `UnfitError` if the probe advises against it, unless forced."""
    session = await asyncio.to_thread(begun, session)
    _check_affords_probe(session)
    unknown = session.settings.endpoint.api == "auto"
    session = await _with_api(session, governor)
    if unknown:
        _check_affords_probe(session)
    truth = await asyncio.to_thread(_read_oracle, session, oracle)
    designed = None if session.settings.auto else await asyncio.to_thread(designed_rounds, session)
    noted = session.store.note("ready")
    if noted is not None:
        prepared = msgspec.convert(noted, Prepared)
    elif session.settings.probed:
        prepared = await _with_probe(session, governor, targets, force)
    else:  # the run itself will show that the endpoint answers
        room = session.settings.design.limit - session.settings.design.offset
        prepared = Prepared(targets=targets or words_as_targets(session.settings), max_shift=room)
    session.store.set_note("ready", msgspec.to_builtins(prepared))
    if designed is None:
        session = _settled(session, _with_method(session.settings, prepared.method))
        truth = await asyncio.to_thread(_read_oracle, session, oracle)
        designed = await asyncio.to_thread(designed_rounds, session)
    design, stages, planned = designed
    return ReadyAudit(
        **vars(session), prepared=prepared, design=design, stages=stages, planned=planned, truth=truth
    )


def begun(session: Session) -> Session:
    items, store = session.items, session.store
    known = store.note("config") or {}
    if session.settings.endpoint.api == "auto" and known.get("api", "auto") != "auto":  # known since it began
        session = replace(session, settings=_with_api_of(session.settings, known["api"], known["base_url"]))
    if session.settings.auto and known.get("method") in METHODS:  # chosen, or named
        session = replace(session, settings=_with_method(session.settings, known["method"]))
    settings = session.settings.resolved(len(items), items.words)
    store.begin(
        settings.fixed(items), items, keep_prompts=settings.prompt.keep_prompts and not settings.given
    )
    store.set_parts(items.by_field, items.parts)
    return replace(session, settings=settings)


async def _with_api(session: Session, governor: Governor) -> Session:
    """Find out which API the address speaks, unless one is named or the run knows."""
    settings, endpoint = session.settings, governor.endpoint
    if settings.endpoint.api == "auto":
        found = await _found_api(session.items, settings, governor)
        session = await asyncio.to_thread(_settled, session, found)
    if isinstance(endpoint, HttpEndpoint):
        endpoint.turn_to(session.settings.endpoint)
    return session


async def _found_api(items: Items, settings: Settings, governor: Governor) -> Settings:
    """The settings with the API that the endpoint speaks; raises `UnfitError` if a chat is none of use."""
    endpoint, spoken, why = governor.endpoint, None, "it is not asked over HTTP"
    if isinstance(endpoint, HttpEndpoint):
        question = DecisionQuestion(settings.answer_words, settings.prompt.graded)
        request = question.request(items[_sampled(items, settings)[0]].messages, 0.0, 0.0)
        spoken, why = await find_api(endpoint, GovernedEndpoint(governor, quiet=True), request)
        governor.run.tell(why)
    if spoken is not None:
        return _with_api_of(settings, spoken.api, spoken.base_url)
    if not settings.auto or settings.endpoint.base_url.endswith(DECISION_APIS):
        raise UnfitError(
            f"this endpoint does not show probabilities of decisions: {why}",
            remedy="{method} audits a chat",
            options={"method": AUTO},
        )
    return settings.replace(api="chat")


def _with_api_of(settings: Settings, api: Api, base_url: str) -> Settings:
    if api not in DECISION_APIS:
        return settings.replace(api=api)
    below = base_url.startswith(settings.endpoint.base_url)  # a form at the path of the other
    url = base_url if below else settings.endpoint.base_url
    return _with_method(settings, "decisions", api=api, base_url=url)


def _settled(session: Session, settings: Settings) -> Session:
    items = session.items
    settings = settings.resolved(len(items), items.words)
    session.store.set_note("config", settings.fixed(items))
    return replace(session, settings=settings)


def _with_method(settings: Settings, method: str, **more: Any) -> Settings:
    queries = settings.design.queries
    if METHODS[method].way in ONCE and queries is not None:
        queries = min(queries, 1.0)
    return settings.replace(method=method, queries=queries, **more)


def _check_affords_probe(session: Session) -> None:
    max_cost, prices, items = session.run.limits.max_cost, session.run.prices, session.items
    if max_cost is None or prices is None or session.store.note("ready") is not None:
        return
    count = _probe_queries(items, session.settings)
    tokens = round(items.characters / len(items) / CHARACTERS_A_TOKEN * count)
    cost = prices.cost(Usage(queries=count, attempts=count, prompt_tokens=tokens, completion_tokens=count))
    if cost > _CLEARLY * max_cost:
        raise InputError(
            f"{{max_cost}} does not pay for the probe: its about {count} queries cost about ${cost:.2g}; "
            "nothing was paid",
            options={"max_cost": max_cost},
        )


def _count(items: Items, settings: Settings) -> int:
    return min(len(items), settings.design.sample or len(items))


def _probe_queries(items: Items, settings: Settings) -> int:
    """About how many queries the probe takes, at least if the API is not known yet."""
    method = "decisions" if settings.endpoint.api == "auto" else settings.assumed_method
    return probe_queries(method, _count(items, settings), several=items.choices is not None)


def designed_rounds(session: Session) -> tuple[Design, list[IntArray] | None, int]:
    settings, items = session.settings, session.items
    stages = sample_stages(items, settings, session.store)
    method = settings.design.method
    design = make_design(
        method,
        items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.design.seed,
        stages=stages,
        choices=items.choices,
        summed=settings.summed,
    )
    sizes = [len(items)] if stages is None else [stage.size for stage in stages]
    planned = sum(count_queries(method, n, settings.queries, settings.bins) for n in sizes)
    return design, stages, planned


def _read_oracle(session: Session, oracle: Path | None) -> Truth | None:
    settings = session.settings
    if oracle is None:
        return None
    about = settings.endpoint.model, settings.semantics, settings.answer_words
    drawn = not METHODS[settings.assumed_method].tempered
    return read_truth(oracle, session.items, *about, drawn=drawn)


async def _with_probe(session: Session, governor: Governor, targets: Targets | None, force: bool) -> Prepared:
    settings, design, run = session.settings, session.settings.design, session.run
    examined = await _examine(session.items, settings, governor, targets, run.tell)
    choice, probed = examined.choice, examined.probe
    name = _chosen(session, examined, force) if settings.auto else design.method
    method = METHODS[name]
    unfit = objection(probed, method)
    if unfit is not None and choice.doubt:
        unfit = f"{unfit}; {choice.doubt}"
    if unfit is not None and not force:
        session.store.forget("probe")
        raise _refusal(probed, name, unfit)
    targets = choice.targets
    return Prepared(
        targets=targets if method.biased else replace(targets, semantics=_semantics(settings, method)),
        max_shift=probed.max_shift if "thresholds" in probed.usable else design.limit - design.offset,
        jitter=probed.noise if method.biased or method.way == "decisions" else 0.0,
        probe=probed,
        objection=unfit,
        unverified=_unverified(probed, method),
        method=name,
        answer_format="word" if method.biased else probed.answer_format,
        constraint=probed.constraint if method.way == "temperature" else None,
        top=probed.top_logprobs or TOP_LOGPROBS,
        tempered=probed.tempered,
        at_once=probed.at_once if method.way == "repeated answers" else 1,
        anchors=_anchors(session.items, settings, probed),
    )


def _unverified(probed: Probe, method: Method) -> str | None:
    """Without a bias that acts by the right amount, nothing shows the scale of temperature either."""
    if not probed.scale_unknown or not (method.biased or method.way == "temperature"):
        return None
    return "the scale of logit_bias" if method.biased else "the scale of temperature"


def _anchors(items: Items, settings: Settings, probed: Probe) -> tuple[KnownFlip, ...]:
    """The items with known flips; with more than two answers, flips are about two of them only."""
    if items.answers or "thresholds" not in probed.usable:
        return ()
    numbers = {items[number].id: number for number in _sampled(items, settings)}
    margin = max(LEAST_MARGIN, 3 * probed.noise)
    return tuple(KnownFlip(numbers[name], flip, margin) for name, flip in probed.flips.items())


def _sampled(items: Items, settings: Settings) -> list[int]:
    """Random items for the probe, then for the pilot queries."""
    order = np.random.default_rng(settings.design.seed).permutation(len(items))
    return [int(number) for number in order[: PROBED + PILOTS]]


def _semantics(settings: Settings, method: Method) -> Semantics:
    """Without a bias, a sampled answer sums all spellings, and logprobs show each."""
    return (settings.prompt.semantics or method.usual_semantics) if method.logprobs else "sum"


def _chosen(session: Session, examined: EndpointProbe, force: bool) -> str:
    best = best_option(examined.options)
    if best is None and force:
        return ASSUMED
    if best is None:
        session.store.forget("probe")
        raise _refusal(examined.probe, AUTO, examined.reason, examined.choice.no_ids, examined.unreasoned)
    cost = _expected_cost(session, best)
    session.run.tell(f"chose {choice_line(best, examined.options, cost, unreasoned=examined.unreasoned)}")
    return best.method


def _expected_cost(session: Session, best: MethodOption) -> str:
    """The output of the audit if its replies are as long as those of the probe, and the price if known."""
    probed, prices = session.store.usage("probe"), session.run.prices
    n = min(len(session.items), session.settings.design.sample or len(session.items))
    times = best.queries * n / max(1, probed.queries)
    written = times * probed.completion_tokens
    long = f", about {float(f'{written:.2g}'):,.0f} output tokens" if written > 2 * best.queries * n else ""
    return long if prices is None else f"{long}, about ${times * prices.cost(probed):.2g}"


async def _examine(
    items: Items,
    settings: Settings,
    governor: Governor,
    targets: Targets | None = None,
    tell: Callable[[str], None] = ignore,
) -> EndpointProbe:
    """Choose tokens and probe the endpoint on random items, for the settings' method or to choose one."""
    check_semantics(settings)
    decides = settings.assumed_method == "decisions"
    options = method_options(settings, len(items)) if settings.auto or decides else ()
    sample = [items[number] for number in _sampled(items, settings)]
    asked = GovernedEndpoint(governor, expected=_probe_queries(items, settings))
    if decides:
        tell("probing the endpoint")
        choice = tokens.Choice(words_as_targets(settings), no_ids="a decision API has no tokens")
        question = DecisionQuestion(settings.answer_words, settings.prompt.graded)
        model = settings.endpoint.model
        probed = await probe_decisions(asked, sample[:PROBED], choice.targets, question, model)
    else:
        choice = await _choice(governor, asked, sample[-PILOTS:], settings, targets, tell)
        tell("probing the endpoint")
        few = has_few(settings.assumed_method, _count(items, settings))
        probed = await _probed(asked, sample[:PROBED], settings, choice, few=few)
    tried = tuple(replace(option, trouble=probed.ways.get(option.way)) for option in options)
    unreasoned = settings.auto and probed.verdict not in ("logprobs", "thresholds")
    if unreasoned:
        form = LogprobQuestion(choice.targets.words, _semantics(settings, METHODS["logprobs"]), TOPS[-1], 0)
        unreasoned = await _shown_unreasoned(governor.endpoint, asked, sample[0], form)
    return EndpointProbe(choice, probed, tried, unreasoned)


async def _shown_unreasoned(
    endpoint: Endpoint, asked: GovernedEndpoint, item: Item, question: LogprobQuestion
) -> bool:
    """Whether logprobs of an answer are shown once the model does not reason."""
    if not isinstance(endpoint, HttpEndpoint) or "reasoning_effort" in endpoint.address.extra_body:
        return False
    address, accepted = endpoint.address, endpoint.accepted
    body = {**address.extra_body, "reasoning_effort": "none"}
    endpoint.turn_to(replace(address, extra_body=body), on_trial=True)
    try:
        reply = await asked.ask(question.request(item.messages, 0.0, 0.0))
    except EndpointError:
        return False
    finally:
        endpoint.turn_to(address)
        endpoint.accepted = accepted
    return question.parse(reply).answer != INVALID


async def _choice(
    governor: Governor,
    asked: GovernedEndpoint,
    pilots: Sequence[Item],
    settings: Settings,
    targets: Targets | None,
    tell: Callable[[str], None],
) -> tokens.Choice:
    if targets is not None:
        return tokens.Choice(targets)
    endpoint = governor.endpoint
    if isinstance(endpoint, HttpEndpoint) and (odd := await endpoint.unlisted()) is not None:
        governor.run.tell(odd)
    tell("choosing answer tokens")
    return await choose_tokens(endpoint, asked, pilots, settings)


async def _probed(
    asked: GovernedEndpoint, sample: Sequence[Item], settings: Settings, choice: tokens.Choice, *, few: bool
) -> Probe:
    design = settings.design
    return await probe_endpoint(
        asked,
        sample,
        choice.targets,
        ways=_ways(settings),
        questions=_questions(choice.targets, settings),
        no_ids=choice.no_ids,
        constrained=design.method == "temperature",
        offset=design.offset,
        limit=design.limit,
        seed=design.seed,
        few=few,
    )


def _ways(settings: Settings) -> tuple[Way, ...]:
    """The ways to probe; if a named threshold method may not work, temperature is tried too."""
    if settings.auto:
        return settings.ways
    way = METHODS[settings.design.method].way
    if settings.free_text or way not in ("thresholds", "temperature"):
        return (way,)
    return "thresholds", "temperature"


def _questions(targets: Targets, settings: Settings) -> ProbeQuestions:
    words, form = settings.answer_words, settings.prompt.answer_format
    plain_forms: list[TokenQuestion | FreeTextQuestion] = []
    if form in (None, "word"):
        plain_forms.append(TokenQuestion(targets, biased=False, max_tokens=settings.max_tokens("word")))
    if form != "word":
        other = form or "sentence"
        plain_forms.append(FreeTextQuestion(words, other, settings.max_tokens(other)))
    semantics = _semantics(settings, METHODS["logprobs"])
    return ProbeQuestions(
        tuple(plain_forms),
        lambda top: LogprobQuestion(targets.words, semantics, top),
        ConfidenceQuestion(
            words, settings.prompt.confidence_wording, settings.prompt.max_tokens or STATED_TOKENS
        ),
    )


async def choose_tokens(
    endpoint: Endpoint, patient: Endpoint, pilots: Sequence[Item], settings: Settings
) -> tokens.Choice:
    """Choose the answer tokens that the settings ask for; pilot queries go through ``patient``."""
    prompt = settings.prompt
    if settings.free_text:
        return tokens.Choice(words_as_targets(settings), no_ids="free text needs none")
    if not isinstance(endpoint, HttpEndpoint):
        raise InputError("an endpoint of your own needs the answer tokens too: pass targets")
    by_hand = bool(prompt.positive_ids) and bool(prompt.negative_ids)
    try:
        if by_hand:
            known = tokens.Vocabulary(tokens.served_vocabulary(endpoint, settings.endpoint.model))
        else:
            known = await tokens.find_vocabulary(endpoint, patient, pilots[0], prompt.tokenizer)
        ids = prompt.positive_ids, prompt.negative_ids
        answers = await tokens.candidates_of(settings.answer_words, known.encode, ids)
        return await tokens.choose(patient, pilots, answers, settings.target_semantics, unsure=known.unsure)
    except UnfitError as error:
        if not settings.auto and METHODS[settings.design.method].biased:
            raise
        # Without a bias only the words matter, and no vocabulary is needed.
        return tokens.Choice(replace(words_as_targets(settings), semantics="sum"), no_ids=error.message)


def check_semantics(settings: Settings) -> None:
    """Raise `InputError` if several spellings of more than two answers would have to be biased."""
    wanted = settings.prompt.semantics
    if len(settings.answer_words) > 2 and wanted in ("max", "sum") and settings.design.method != "logprobs":
        raise InputError(
            f"semantics: of more than two answers, each is one token (pair), not {wanted}; leave it out, or "
            "read all spellings with {method}",
            options={"method": "logprobs"},
        )


def words_as_targets(settings: Settings) -> Targets:
    """The answer words with meaningless token ids, for methods that need no token of the vocabulary."""
    words = enumerate(settings.answer_words)
    return tokens.targets_of([[Token(number, word)] for number, word in words])


def objection(probed: Probe, method: Method) -> str | None:
    """Why a method cannot audit an endpoint with these findings; ``None`` if it can."""
    drawn = method.way == "temperature" and "thresholds" in probed.usable  # then drawn answers were seen too
    if method.way not in probed.usable and not drawn:
        return probed.reason
    if not method.sampled or method.way not in ("thresholds", "temperature"):
        return None
    heat = next(f for f in probed.findings if f.question == "temperature honoured")
    if heat.outcome != "good":
        return f"temperature is not shown to be honoured ({heat.answer})"
    return None


def _refusal(
    probed: Probe, method: str, objection: str, no_ids: str = "", unreasoned: bool = False
) -> UnfitError:
    if probed.unreadable:
        return UnfitError(
            f"this endpoint is not auditable: {objection}",
            remedy=probed.remedy,
            options=probed.remedy_options,
        )
    cannot = "is not auditable" if probed.verdict == "not auditable" else f"cannot be audited by {method}"
    options: dict[str, object] = {"force": True}
    remedies = ["{force} continues anyway; the estimates may mean nothing"]
    if no_ids:
        options["tokenizer"] = ...
        remedies.insert(0, "{tokenizer} tells the token ids, without which thresholds cannot be tried")
    if probed.verdict == "temperature" and method in METHODS and METHODS[method].biased:
        options["method"] = "temperature"
        remedies.insert(0, "use {method}")
    elif method != AUTO and METHODS[method].way != "thresholds":
        options["method"] = AUTO
        remedies.insert(0, "{method} chooses a method that this endpoint allows")
    if unreasoned:
        options["reasoning_effort"] = "none"
        remedies.insert(0, "use {reasoning_effort}, with which logprobs are shown")
    if probed.within_clamp:
        options |= probed.within_clamp
        remedies.insert(0, "run it again with {offset} and {limit}")
    return UnfitError(f"this endpoint {cannot}: {objection}", remedy="; or ".join(remedies), options=options)


@dataclass(frozen=True, slots=True, repr=False)
class EndpointProbe:
    """What a probe found: the answer tokens, how the endpoint treats them, and the options of `auto`.

    ``unreasoned`` says whether logprobs are hidden only as long as the model reasons.
    """

    choice: Choice
    probe: Probe
    options: tuple[MethodOption, ...] = ()
    unreasoned: bool = False

    @property
    def verdict(self) -> ProbeVerdict:
        """The best way to audit the endpoint, if there is one."""
        return self.probe.verdict

    @property
    def reason(self) -> str:
        """The reason for the verdict."""
        return self.probe.reason

    @property
    def queries(self) -> int:
        """Number of queries, including those that chose the tokens."""
        return self.choice.queries + self.probe.queries

    def __repr__(self) -> str:
        return f"EndpointProbe({self.verdict}: {printable(self.reason, 100)}, {self.queries} queries)"


async def _probe(
    items: str | Path,
    settings: Settings,
    *,
    limits: Limits | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> EndpointProbe:
    """Find out with about 200 queries whether and how an endpoint can be audited.

    Parameters
    ----------
    items : path
        The labelled questions (a file or a named set) that the audit would ask; 16 of them are used.
    settings : Settings
        The endpoint, answer words, offset and limit. The method only decides whether it is an error if no
        answer tokens are found.
    limits : Limits, optional
        How fast to ask, and when to stop.
    progress, stage : callable, optional
        Called after every reply, and before the probe waits for the endpoint.

    Raises
    ------
    InputError
        If the endpoint needs an API key and there is none.
    FatalError
        If the key, the model or the address is wrong, or no token of the model is an answer word.
    """
    settings.endpoint.check_key()
    loaded = await asyncio.to_thread(open_items, items, settings.prompt)
    settings = settings.resolved(len(loaded), loaded.words)
    async with HttpEndpoint(settings.endpoint) as model:
        governor = Governor(model, RunContext.of(limits=limits, progress=progress, stage=stage, stop=stop))
        if settings.endpoint.api == "auto":
            settings = await _found_api(loaded, settings, governor)
            model.turn_to(settings.endpoint)
        return await _examine(loaded, settings, governor)


probe = blocking(_probe)
