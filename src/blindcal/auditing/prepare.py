"""What must be known before the first query of an audit: the answer tokens and the probe's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from blindcal.asking.governed_endpoint import GovernedEndpoint
from blindcal.asking.governor import Governor
from blindcal.asking.job import Job
from blindcal.auditing.choice import METHOD_OF, MethodChoice
from blindcal.auditing.session import Session
from blindcal.endpoints import tokens, vocabulary
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.constraints import CONSTRAINTS, ConstraintName
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import (
    STATED_TOKENS,
    ConfidenceQuestion,
    FreeTextQuestion,
    LogprobQuestion,
    QuestionFormat,
    TokenQuestion,
)
from blindcal.endpoints.shown_logprobs import TOP_LOGPROBS
from blindcal.errors import InputError, UnfitError
from blindcal.items.files import Items
from blindcal.methods import ASSUMED, AUTO, METHODS, Method
from blindcal.planning.plan import probe_queries
from blindcal.probing.findings import Probe
from blindcal.probing.probe import ITEMS_WITHOUT_BIAS, ProbeQuestions, probe
from blindcal.records import (
    AnswerFormat,
    Item,
    Semantics,
    Targets,
    Token,
    Way,
)
from blindcal.settings import Settings

PILOTS, PROBED = 4, ITEMS_WITHOUT_BIAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What must be known before the first query; noted in the run, so that it is paid for once.

    ``objection`` says why the audit should not go on, if it was forced to, and ``unverified`` what the probe
    could not verify although the estimates depend on it. ``method`` is the chosen
    one, ``answer_format`` the form of the answers, and ``constraint`` names what allows no others. ``top`` is
    the number of logprobs that the endpoint shows, and ``tempered`` whether it takes a temperature. At most
    ``at_once`` answers are asked for in one request.
    """

    targets: Targets
    max_shift: float
    jitter: float = 0.0
    probe: Probe | None = None
    objection: str | None = None
    unverified: str | None = None
    method: str = ""
    answer_format: AnswerFormat = "word"
    constraint: ConstraintName | None = None
    top: int = TOP_LOGPROBS
    tempered: bool = True
    at_once: int = 1

    def question(self, settings: Settings) -> QuestionFormat:
        """How queries are formatted and their answers read."""
        design, most = settings.design, settings.max_tokens(self.answer_format)
        if settings.estimator_name == "stated":
            return ConfidenceQuestion(settings.answer_words, settings.prompt.instruction, most, self.tempered)
        method = METHODS[design.method]
        if method.logprobs:
            return _logprob_question(self.targets, self.targets.semantics, self.top, tempered=self.tempered)
        seed = design.seed if design.send_seed else None
        if self.answer_format != "word":
            return FreeTextQuestion(
                settings.answer_words,
                self.answer_format,
                most,
                tempered=method.tempered,
                seed=seed,
                constraint=self.constraint,
            )
        if self.constraint is not None:
            most = max(most, CONSTRAINTS[self.constraint].max_tokens)
        return TokenQuestion(
            self.targets,
            design.offset,
            biased=method.biased,
            seed=seed,
            tempered=method.tempered,
            max_tokens=most,
            constraint=self.constraint,
            own_noise=design.seed if self.own_noise(method) else None,
        )

    def own_noise(self, method: Method) -> bool:
        """Whether queries at a temperature are sent at T = 0 with Gumbel numbers of our own (METHOD 8).

        Threshold answers can follow the sum of several spellings only in this way.
        """
        return method.biased and not method.sampled and self.targets.semantics == "sum"


async def prepare(
    session: Session, governor: Governor, *, targets: Targets | None = None, force: bool = False
) -> Prepared:
    """Choose the answer tokens and probe the endpoint, or read back what was found before.

    Raises `UnfitError` if the probe finds the endpoint unfit for the method, unless ``force`` is set.
    """
    noted = session.store.note("ready")
    if noted is not None:
        return msgspec.convert(noted, Prepared)
    if session.settings.probed:
        prepared = await _with_probe(session, governor, targets, force)
    else:
        prepared = _without_probe(session, targets)
    session.store.set_note("ready", msgspec.to_builtins(prepared))
    return prepared


def job_of(session: Session, prepared: Prepared) -> Job:
    """The job of a session, as its preparation found that it is to be asked."""
    return Job(
        items=session.items,
        question=prepared.question(session.settings),
        store=session.store,
        max_shift=prepared.max_shift,
        at_once=prepared.at_once,
        answers=len(session.items.answers) or 2,
    )


def _without_probe(session: Session, targets: Targets | None) -> Prepared:
    """Prepare a method that only needs the endpoint to answer, which the run itself will show."""
    settings = session.settings
    room = settings.design.limit - settings.design.offset
    return Prepared(targets=targets or _words(settings), max_shift=room)


async def _with_probe(session: Session, governor: Governor, targets: Targets | None, force: bool) -> Prepared:
    settings, design, items = session.settings, session.settings.design, session.items
    check_semantics(settings)
    choosing = MethodChoice(settings, len(items)) if settings.auto else None
    sample = probe_sample(items, design.seed)
    expected, endpoint = probe_queries(several=items.choices is not None), governor.endpoint
    asked = GovernedEndpoint(governor, session.store, expected=expected)
    if targets is not None:
        choice = tokens.Choice(targets)
    else:
        if isinstance(endpoint, HttpEndpoint) and (odd := await endpoint.unlisted()) is not None:
            session.run.tell(odd)
        session.run.tell("choosing answer tokens")
        choice = await choose_tokens(endpoint, asked, sample[-PILOTS:], settings)
    session.run.tell("probing the endpoint")
    found = await probe_sampled(asked, sample, choice, settings, choosing)
    name = design.method if choosing is None else _chosen(session, choosing, found, choice.no_ids, force)
    method = METHODS[name]
    unfit = objection(found, method)
    if unfit is not None and choice.doubt:
        unfit = f"{unfit}; {choice.doubt}"
    if unfit is not None and not force:
        session.store.forget("probe")
        raise _refusal(found, name, unfit)
    targets = choice.targets
    return Prepared(
        targets=targets if method.biased else replace(targets, semantics=_semantics(settings, method)),
        max_shift=found.max_shift if "thresholds" in found.usable else design.limit - design.offset,
        jitter=found.noise if method.biased else 0.0,
        probe=found,
        objection=unfit,
        unverified="the scale of logit_bias" if method.biased and found.scale_unknown else None,
        method=name,
        answer_format="word" if method.biased else found.answer_format,
        constraint=found.constraint if method.way == "temperature" else None,
        top=found.top_logprobs or TOP_LOGPROBS,
        tempered=found.tempered,
        # the answers to one request share its seed
        at_once=found.at_once if method.way == "repeated answers" and not design.send_seed else 1,
    )


def _semantics(settings: Settings, method: Method) -> Semantics:
    """The semantics of a method without a bias: a sampled answer sums all spellings, logprobs show each."""
    return (settings.prompt.semantics or method.usual_semantics) if method.logprobs else "sum"


def _chosen(session: Session, choosing: MethodChoice, found: Probe, no_ids: str, force: bool) -> str:
    """The method that was chosen, which is told; raises `UnfitError` if none fits and none is forced."""
    best = choosing.best(found)
    if best is None and force:
        return ASSUMED
    if best is None:
        session.store.forget("probe")
        raise _refusal(found, AUTO, found.reason, no_ids)
    session.run.tell(f"chose {choosing.line(best, found)}")
    return best.method


def probe_sample(items: Items, seed: int) -> list[Item]:
    """The items for the probe, followed by those for the pilot queries."""
    order = np.random.default_rng(seed).permutation(len(items))[: PROBED + PILOTS]
    return [items[int(k)] for k in order]


async def probe_sampled(
    endpoint: Endpoint,
    sample: Sequence[Item],
    choice: tokens.Choice,
    settings: Settings,
    choosing: MethodChoice | None = None,
) -> Probe:
    """Probe an endpoint on the items of `probe_sample`: for the method of the settings, or to choose one."""
    design = settings.design
    return await probe(
        endpoint,
        sample[:PROBED],
        choice.targets,
        ways=_ways(settings),
        questions=_questions(choice.targets, settings),
        no_ids=choice.no_ids,
        enough=choosing.enough if choosing is not None else lambda _: True,
        constrained=settings.design.method == "temperature",
        offset=design.offset,
        limit=design.limit,
        seed=design.seed,
        send_seed=design.send_seed,
    )


def _ways(settings: Settings) -> tuple[Way, ...]:
    """What to look for: everything, or what the method needs.

    Where a method that the user named does not fit, temperature may.
    """
    if settings.auto:
        return tuple(METHOD_OF)
    way = METHODS[settings.design.method].way
    if settings.free_text or way not in ("thresholds", "temperature"):
        return (way,)
    return "thresholds", "temperature"


def _questions(targets: Targets, settings: Settings) -> ProbeQuestions:
    """How the probe asks without a bias: in the form that the settings name, or in the first that works."""
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
        lambda top: _logprob_question(targets, semantics, top),
        ConfidenceQuestion(words, settings.prompt.instruction, settings.prompt.max_tokens or STATED_TOKENS),
    )


def _logprob_question(
    targets: Targets, semantics: Semantics, top: int, *, tempered: bool = True
) -> LogprobQuestion:
    return LogprobQuestion(targets.words, semantics, top, tempered)


async def choose_tokens(
    endpoint: Endpoint, patient: Endpoint, pilots: Sequence[Item], settings: Settings
) -> tokens.Choice:
    """Choose the answer tokens that the settings ask for; pilot queries go through ``patient``."""
    prompt = settings.prompt
    if settings.free_text:
        return tokens.Choice(_words(settings), no_ids="free text needs none")
    if not isinstance(endpoint, HttpEndpoint):
        raise InputError("an endpoint of your own needs the answer tokens too: pass targets")
    by_hand = bool(prompt.positive_ids) and bool(prompt.negative_ids)
    try:
        if by_hand:
            known = vocabulary.Vocabulary(vocabulary.served(endpoint, settings.endpoint.model))
        else:
            known = await vocabulary.find(endpoint, patient, pilots[0], prompt.tokenizer)
        ids = prompt.positive_ids, prompt.negative_ids
        answers = await tokens.candidates_of(settings.answer_words, known.encode, ids)
        return await tokens.choose(patient, pilots, answers, settings.target_semantics, unsure=known.unsure)
    except UnfitError as error:
        if not settings.auto and METHODS[settings.design.method].biased:
            raise
        # Without a bias only the words matter, and no vocabulary is needed.
        return tokens.Choice(replace(_words(settings), semantics="sum"), no_ids=error.message)


def check_semantics(settings: Settings) -> None:
    """Raise an error if several spellings of more than two answers would have to be biased."""
    wanted = settings.prompt.semantics
    if len(settings.answer_words) > 2 and wanted in ("max", "sum") and settings.design.method != "logprobs":
        raise InputError(
            f"semantics: of more than two answers, each is one token (pair), not {wanted}; leave it out, or "
            "read all spellings with {method}",
            options={"method": "logprobs"},
        )


def _words(settings: Settings) -> Targets:
    """The answer words with meaningless token ids, for methods that need no token of the vocabulary."""
    words = enumerate(settings.answer_words)
    return tokens.targets_of([[Token(number, word)] for number, word in words])


def objection(found: Probe, method: Method) -> str | None:
    """Why this method cannot audit an endpoint with these findings, or ``None`` if it can."""
    drawn = method.way == "temperature" and "thresholds" in found.usable  # then drawn answers were seen too
    if method.way not in found.usable and not drawn:
        return found.reason
    if not method.sampled or method.way not in ("thresholds", "temperature"):
        return None
    heat = next(f for f in found.findings if f.question == "temperature honoured")
    if heat.outcome != "good":
        return f"temperature is not shown to be honoured ({heat.answer})"
    return None


def _refusal(found: Probe, method: str, objection: str, no_ids: str = "") -> UnfitError:
    """An error with the objection, what can be done about it, and last how to override it."""
    if found.unreadable:
        return UnfitError(
            f"this endpoint is not auditable: {objection}", remedy=found.remedy, options=found.remedy_options
        )
    cannot = "is not auditable" if found.verdict == "not auditable" else f"cannot be audited by {method}"
    options: dict[str, object] = {"force": True}
    remedies = ["{force} goes on all the same; the estimates may mean nothing"]
    if no_ids:
        options["tokenizer"] = ...
        remedies.insert(0, "{tokenizer} tells the token ids, without which thresholds cannot be tried")
    if found.verdict == "temperature" and method in METHODS and METHODS[method].biased:
        options["method"] = "temperature"
        remedies.insert(0, "use {method}")
    elif method != AUTO and METHODS[method].way != "thresholds":
        options["method"] = AUTO
        remedies.insert(0, "{method} uses what fits")
    if found.within_clamp:
        options |= found.within_clamp
        remedies.insert(0, "run it again with {offset} and {limit}")
    return UnfitError(f"this endpoint {cannot}: {objection}", remedy="; or ".join(remedies), options=options)
