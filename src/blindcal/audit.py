"""An audit from a file of questions to a result: items, tokens, probe, run, estimate.

Everything paid for is kept in the run's folder, so that the same call again goes on where the last one
ended, and costs nothing once it has finished. :func:`audit` is for scripts and notebooks,
:func:`audit_async` for programs that have an event loop of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from blindcal import design
from blindcal.data import Items, Reading, load
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Endpoint, Patient
from blindcal.endpoints.http import Address, Api, HttpEndpoint
from blindcal.endpoints.probe import Probe, probe
from blindcal.errors import ConfigError, FatalError, UnfitError
from blindcal.estimate.truth import bins_blind
from blindcal.figures import figures
from blindcal.oracle import Truth, read_truth
from blindcal.records import (
    INVALID,
    NEGATIVE,
    POSITIVE,
    Answered,
    Item,
    Reply,
    Request,
    Semantics,
    Targets,
    Token,
)
from blindcal.result import SCHEMA_VERSION, AuditResult, Counts, Spend, write_answers
from blindcal.run import CHARACTERS_A_TOKEN, Limits, Outcome, Prices, Progress, Question, run
from blindcal.store import Store, Usage
from blindcal.text import printable

OPENAI = "https://api.openai.com/v1"
RUN_FILE, RESULT_FILE, ANSWERS_FILE = "run.sqlite", "result.json", "answers.csv"
PILOTS, PROBED = 4, 6
DEFAULT_QUERIES = {"latent": 1.0, "blind": 1.0, "sampling": 4.0, "extraction": 6.0, "temperature": 3.0}
# Dollars per million tokens in and out, as listed in 2025; longer names first.
LIST_PRICES = {
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4o": (2.5, 10.0),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-3.5-turbo": (0.5, 1.5),
}
SAMPLED = ("sampling", "temperature")
DEFAULT_BINS = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What defines an audit: who is asked, what, and how it is estimated.

    ``queries`` is the mean number an item (by default 1 for ``latent`` and ``blind``). ``offset`` is the
    common bias C of METHOD 2 and ``limit`` the largest bias the service takes. ``resamples`` refits stand
    behind the intervals. ``keep_prompts=False`` keeps only hashes of the questions in the run file.
    """

    model: str
    base_url: str = OPENAI
    api: Api = "chat"
    api_version: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    positive: str = "Yes"
    negative: str = "No"
    positive_ids: tuple[int, ...] = ()
    negative_ids: tuple[int, ...] = ()
    tokenizer: str | None = None
    semantics: Semantics = "pair"
    method: str = "latent"
    queries: float | None = None
    bins: int | None = None
    level: float = 0.95
    resamples: int = 1000
    seed: int = 0
    offset: float = 50.0
    limit: float = 100.0
    template: str | None = None
    system: str | None = None
    label_map: Mapping[str, int] | None = None
    label_field: str = "label"
    id_field: str = "id"
    group_field: str = "group"
    keep_prompts: bool = True

    def __post_init__(self) -> None:
        if self.method not in DEFAULT_QUERIES:
            raise ConfigError(f"method must be one of {', '.join(DEFAULT_QUERIES)}, not {self.method!r}")
        if not 0 < self.level < 1:
            raise ConfigError(f"level must be between 0 and 1, not {self.level}")

    @property
    def reading(self) -> Reading:
        """How a record becomes an item."""
        role = "prompt" if self.api == "completions" else "user"
        return Reading(
            self.template,
            self.label_map,
            self.label_field,
            self.id_field,
            self.group_field,
            self.system,
            role,
        )

    @property
    def address(self) -> Address:
        """Where the model is."""
        return Address(
            self.base_url,
            self.model,
            self.api,
            self.api_version,
            self.api_key_env,
            self.extra_body,
            self.timeout,
        )

    def resolved(self, n: int) -> Settings:
        """With the defaults that depend on the method and the number of items filled in."""
        bins = self.bins or (bins_blind(n) if self.method == "blind" else DEFAULT_BINS)
        return replace(self, queries=self.queries or DEFAULT_QUERIES[self.method], bins=bins)

    def fixed(self, items: Items) -> dict[str, Any]:
        """What a run may not be continued with once it has begun with another: all that shapes a query."""
        free = {
            "api_key_env",
            "timeout",
            "level",
            "resamples",
            *(() if self.method == "blind" else ("bins",)),
        }
        shaping = {name: value for name, value in asdict(self).items() if name not in free}
        return _plain({**shaping, "items": len(items), "items_digest": items.digest})


@dataclass(frozen=True, slots=True)
class Plan:
    """What an audit would ask and cost; ``counted`` says whether the tokens are, or are guessed."""

    items: int
    queries: int
    prompt_tokens: int
    completion_tokens: int
    counted: bool
    cost: float | None


def audit(
    items: str | Path,
    settings: Settings,
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    oracle: str | Path | None = None,
    force: bool = False,
    endpoint: Endpoint | None = None,
    targets: Targets | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
) -> AuditResult:
    """Audit a model, and wait for it; works in a notebook too, where an event loop is already running.

    The parameters are those of :func:`audit_async`. Ctrl-C stops asking, keeps every answer under way
    and then raises `KeyboardInterrupt`; a second one does not wait.
    """
    return _wait_for(
        lambda stop: audit_async(
            items,
            settings,
            out=out,
            limits=limits,
            prices=prices,
            oracle=oracle,
            force=force,
            endpoint=endpoint,
            targets=targets,
            progress=progress,
            stage=stage,
            stop=stop,
        )
    )


async def audit_async(
    items: str | Path,
    settings: Settings,
    *,
    out: str | Path | None = None,
    limits: Limits | None = None,
    prices: Prices | None = None,
    oracle: str | Path | None = None,
    force: bool = False,
    endpoint: Endpoint | None = None,
    targets: Targets | None = None,
    progress: Callable[[Progress], None] | None = None,
    stage: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> AuditResult:
    """Audit a model on the items of a file.

    Parameters
    ----------
    items : path
        The labelled questions; see :func:`blindcal.data.load`.
    settings : Settings
        Who is asked what, and how.
    out : path, optional
        The run's folder; by default ``runs/ITEMS-MODEL``. A run begun there is taken up again.
    limits, prices : optional
        How hard to ask and when to stop; dollars per million tokens.
    oracle : path, optional
        A score file (``id``, ``label``, ``p``) with the true probabilities, to compare with.
    force : bool
        Go on although the probe found the endpoint unfit.
    endpoint, targets : optional
        Something else to ask than the address in the settings, with the tokens to bias. It is closed
        at the end.
    progress, stage : callable, optional
        Told how far the run is, and what is being done.
    stop : asyncio.Event, optional
        Set it to stop asking; the result then says so.

    Raises
    ------
    UnfitError
        If the probe's verdict is bad and nothing is forced.
    ConfigError
        If the folder holds a run with other settings.
    EndpointError
        If asking is useless; every answer until then is kept.
    """
    tell = stage or (lambda _: None)
    limits = limits or Limits()
    folder = Path(out) if out is not None else default_folder(items, settings.model)
    folder.mkdir(parents=True, exist_ok=True)
    tell("reading items")
    loaded = await asyncio.to_thread(load, items, settings.reading, scratch=folder)
    with loaded, Store.open(folder / RUN_FILE) as store:
        settings = settings.resolved(len(loaded))
        await asyncio.to_thread(
            store.begin, settings.fixed(loaded), loaded, keep_prompts=settings.keep_prompts
        )
        truth = (
            None
            if oracle is None
            else await asyncio.to_thread(
                read_truth, Path(oracle), loaded, settings.semantics, settings.method
            )
        )
        async with _opened(endpoint, settings) as asked:
            ready = await _prepare(asked, loaded, settings, store, targets, limits.concurrency, force, tell)
            tell("asking")
            asking = _design(loaded, settings)
            outcome = await run(
                asking,
                loaded,
                asked,
                Question(ready.targets, settings.offset, settings.method != "temperature"),
                store,
                limits=limits,
                prices=prices,
                planned=_planned(asking, loaded, settings),
                spent=ready.spent,
                max_shift=ready.max_shift,
                progress=progress,
                stop=stop,
            )
        tell("estimating")
        result = await asyncio.to_thread(_conclude, loaded, settings, asking, outcome, ready, prices, truth)
        tell("writing")
        await asyncio.to_thread(write_answers, store, folder / ANSWERS_FILE)
        result.save(folder / RESULT_FILE)
    return result


async def plan(
    items: str | Path, settings: Settings, *, prices: Prices | None = None, scratch: Path | None = None
) -> Plan:
    """What an audit would ask and cost, found without asking anything.

    Tokens are counted where the model's vocabulary is at hand (a named tokenizer, OpenAI's models), and
    guessed from the number of characters otherwise.
    """
    loaded = await asyncio.to_thread(load, items, settings.reading, scratch=scratch)
    with loaded:
        settings = settings.resolved(len(loaded))
        queries = _planned(_design(loaded, settings), loaded, settings)
        encode = None
        if settings.tokenizer is not None or tokens.openai_encoding(settings.model) is not None:
            encode = tokens.find(HttpEndpoint(settings.address), settings.model, settings.tokenizer)
        total = 0.0
        for item in loaded if encode is not None else ():
            assert encode is not None
            # What a chat wraps around each message and the reply, as OpenAI documents it.
            total += 3 + sum([4 + len(await encode(message.content)) for message in item.messages])
        if encode is None:
            total = loaded.characters / CHARACTERS_A_TOKEN
    usage = Usage(queries, queries, round(total * queries / len(loaded)), queries)
    cost = None if prices is None else prices.cost(usage)
    return Plan(len(loaded), queries, usage.prompt_tokens, usage.completion_tokens, encode is not None, cost)


def known_prices(settings: Settings) -> Prices | None:
    """OpenAI's list prices, for its own models at its own address."""
    if settings.base_url.rstrip("/") != OPENAI:
        return None
    return next(
        (Prices(*each) for name, each in LIST_PRICES.items() if settings.model.startswith(name)), None
    )


def default_folder(items: str | Path, model: str) -> Path:
    """Where a run goes if nothing is said: the same for the same items and model."""
    stem = Path(items).name.split(".")[0]
    return Path("runs") / "-".join(re.sub(r"[^\w.]+", "-", part).strip("-.") for part in (stem, model))


@dataclass(frozen=True, slots=True)
class _Ready:
    """What has to be known before the first query: noted in the run, so that it is paid for once."""

    targets: Targets
    spent: Usage
    max_shift: float
    jitter: float
    probe: dict[str, Any]


async def _prepare(
    endpoint: Endpoint,
    items: Items,
    settings: Settings,
    store: Store,
    targets: Targets | None,
    concurrency: int,
    force: bool,
    tell: Callable[[str], None],
) -> _Ready:
    noted = store.note("ready")
    if noted is not None:
        return msgspec.convert(noted, _Ready)
    order = np.random.default_rng(settings.seed).permutation(len(items))[: PROBED + PILOTS]
    sample = [items[int(k)] for k in order]
    patient = Patient(_Remembered(endpoint, store, concurrency))
    if targets is None:
        tell("choosing answer tokens")
        choice = await _choose(endpoint, patient, sample[-PILOTS:], settings)
    else:
        choice = tokens.Choice(targets, {}, 0)
    tell("probing the endpoint")
    found = await probe(
        patient,
        sample[:PROBED],
        choice.targets,
        offset=settings.offset,
        limit=settings.limit,
        seed=settings.seed,
    )
    trouble = _trouble(found, settings.method)
    if trouble is not None and not force:
        store.forget_asides()
        raise UnfitError(f"{trouble}; force the audit to go on all the same")
    queries = choice.queries + found.queries
    ready = _Ready(
        replace(choice.targets, semantics="sum") if settings.method == "temperature" else choice.targets,
        Usage(queries, queries, found.prompt_tokens, found.completion_tokens),
        found.max_shift if found.verdict == "thresholds" else settings.limit - settings.offset,
        float(np.nan_to_num(max(found.jitter, found.crowd_jitter))),
        _plain({**msgspec.to_builtins(found), "votes": choice.votes, "forced": trouble is not None}),
    )
    store.set_note("ready", msgspec.to_builtins(ready))
    return ready


class _Remembered:
    """An endpoint that asks nothing twice: what a run asked before it was interrupted is read back.

    It keeps to the run's concurrency too, so that a crash loses no more here than there.
    """

    def __init__(self, endpoint: Endpoint, store: Store, concurrency: int) -> None:
        self._endpoint = endpoint
        self._store = store
        self._room = asyncio.Semaphore(concurrency)
        self._times: Counter[bytes] = Counter()

    async def ask(self, request: Request) -> Reply:
        key = hashlib.blake2b(msgspec.json.encode(request), digest_size=16).digest()
        nth = self._times[key]
        self._times[key] += 1
        if (kept := self._store.aside(key, nth)) is not None:
            return msgspec.json.decode(kept, type=Reply)
        async with self._room:
            reply = await self._endpoint.ask(request)
            self._store.add_aside(key, nth, msgspec.json.encode(reply).decode())
        return reply

    async def close(self) -> None:
        await self._endpoint.close()


async def _choose(
    endpoint: Endpoint, patient: Patient, pilots: list[Item], settings: Settings
) -> tokens.Choice:
    by_hand = bool(settings.positive_ids) and bool(settings.negative_ids)
    if not isinstance(endpoint, HttpEndpoint):
        raise ConfigError("an endpoint of your own needs the answer tokens too: pass targets")
    find = tokens.served if by_hand else tokens.find
    try:
        return await tokens.resolve(
            patient,
            find(endpoint, settings.model, *(() if by_hand else (settings.tokenizer,))),
            pilots,
            positive=settings.positive,
            negative=settings.negative,
            positive_ids=settings.positive_ids,
            negative_ids=settings.negative_ids,
            semantics=settings.semantics,
        )
    except FatalError:
        if settings.method != "temperature":
            raise
        # Without a bias only the words matter, and no vocabulary is needed.
        words = Targets((Token(0, settings.positive),), (Token(1, settings.negative),), "sum")
        return tokens.Choice(words, {}, 0)


def _trouble(found: Probe, method: str) -> str | None:
    """Why an endpoint with these findings cannot be audited by this method, if so."""
    if found.verdict == "not auditable":
        return f"this endpoint is not auditable: {found.reason}"
    if found.verdict == "temperature" and method != "temperature":
        return f"this endpoint cannot be audited by {method}: {found.reason}. Use the method 'temperature'"
    heat = next((f for f in found.findings if f.question == "temperature honoured"), None)
    if method in SAMPLED and heat is not None and heat.outcome in ("caution", "bad"):
        return f"this endpoint cannot be audited by {method}: temperature is not honoured ({heat.answer})"
    return None


def _design(items: Items, settings: Settings) -> design.Design:
    assert settings.queries is not None
    assert settings.bins is not None
    return design.make(
        settings.method,
        items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.seed,
    )


def _planned(asking: design.Design, items: Items, settings: Settings) -> int:
    assert settings.queries is not None
    if settings.method == "blind":  # one subset needs no query
        return len(asking.next_round(Answered.empty()) or ())
    return math.ceil(settings.queries * len(items))


def _conclude(
    items: Items,
    settings: Settings,
    asking: design.Design,
    outcome: Outcome,
    ready: _Ready,
    prices: Prices | None,
    truth: Truth | None,
) -> AuditResult:
    assert settings.bins is not None
    answered, labels = outcome.answered, items.labels
    found = figures(
        settings.method,
        asking,
        labels,
        items.groups,
        answered,
        settings.bins,
        settings.level,
        ready.jitter,
        settings.resamples,
    )
    answers = np.bincount(answered.answers + 1, minlength=3)
    paid = ready.spent + outcome.usage
    return AuditResult(
        schema_version=SCHEMA_VERSION,
        blindcal=version("blindcal"),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        complete=outcome.stopped is None,
        stopped=None if outcome.stopped is None else printable(outcome.stopped),
        items=str(items.path),
        model=settings.model,
        method=settings.method,
        semantics=ready.targets.semantics,
        level=settings.level,
        ece=found.ece,
        overconfidence=found.overconfidence,
        leaning=found.leaning,
        auroc=found.auroc,
        accuracy=found.accuracy,
        brier=found.brier,
        log_loss=found.log_loss,
        tce=found.tce,
        calibrated_pvalue=found.calibrated_pvalue,
        bins=found.bins,
        ece_if_invalid=found.ece_if_invalid,
        counts=Counts(
            items=len(items),
            positive_labels=int(labels.sum()),
            positive=int(answers[POSITIVE + 1]),
            negative=int(answers[NEGATIVE + 1]),
            invalid=int(answers[INVALID + 1]),
            unanswered=len(items) - np.unique(answered.items).size if outcome.stopped else 0,
        ),
        spend=Spend(
            paid.queries,
            ready.spent.queries,
            paid.attempts,
            paid.prompt_tokens,
            paid.completion_tokens,
            paid.cached_tokens,
            None if prices is None else prices.cost(paid),
        ),
        targets=ready.targets,
        probe=ready.probe,
        oracle=None if truth is None else truth.compare(labels, found.ece, settings.bins),
        settings=settings.fixed(items),
    )


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON: lists, and ``None`` for what is no number."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])


@contextlib.asynccontextmanager
async def _opened(endpoint: Endpoint | None, settings: Settings) -> AsyncIterator[Endpoint]:
    asked = HttpEndpoint(settings.address) if endpoint is None else endpoint
    try:
        yield asked
    finally:
        await asked.close()


def _wait_for(begin: Callable[[asyncio.Event], Coroutine[Any, Any, T]]) -> T:
    """Run in a thread with a loop of its own; Ctrl-C asks it to stop, and is raised when it has."""
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    finished: Future[T] = Future()

    async def main() -> T:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        return await begin(stop)

    def work() -> None:
        try:
            finished.set_result(asyncio.run(main()))
        except BaseException as error:
            finished.set_exception(error)

    threading.Thread(target=work, name="blindcal-audit", daemon=True).start()
    try:
        return finished.result()
    except KeyboardInterrupt:
        loop, stop = started.result()
        with contextlib.suppress(RuntimeError):  # it may just have ended
            loop.call_soon_threadsafe(stop.set)
        finished.exception()  # wait; a second Ctrl-C is raised here
        raise
