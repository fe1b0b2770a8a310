"""What defines an audit: who is asked, what, and how it is estimated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import msgspec

from blindcal.design import METHODS, read_by
from blindcal.endpoints.http import Address, Api
from blindcal.errors import ConfigError
from blindcal.estimate.truth import bins_blind
from blindcal.items.files import Items, RecordFormat
from blindcal.prices import Prices
from blindcal.records import Estimator, Semantics

OPENAI = "https://api.openai.com/v1"
# Dollars per million tokens in and out; longer names first. Indicative: OpenAI's list prices as
# remembered from 2025, not checked since. The command line says so where prices can be given.
LIST_PRICES = {
    "gpt-4o-mini": (0.15, 0.6),
    "gpt-4o": (2.5, 10.0),
    "gpt-4.1-nano": (0.1, 0.4),
    "gpt-4.1-mini": (0.4, 1.6),
    "gpt-4.1": (2.0, 8.0),
    "gpt-3.5-turbo": (0.5, 1.5),
}
DEFAULT_BINS = 5
MOST_QUERIES = 100
DEFAULT_WORDS = ("Yes", "No")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What defines an audit: who is asked, what, and how it is estimated.

    ``positive`` and ``negative`` are the answer words, by default the items' own, else Yes and No.
    ``queries`` is the mean number an item (by default 1 for ``latent`` and ``blind``). ``estimator`` reads
    the answers as the method does (``own``) or by the likelihood of ``latent``; ``instruction`` replaces the
    wording in which ``verbalized`` asks for a confidence. ``offset`` is the common bias C of METHOD 2 and
    ``limit`` the largest bias the service takes. ``resamples`` refits stand behind the intervals.
    ``by_field`` names the field that the result is broken down by.
    ``keep_prompts=False`` keeps only hashes of the questions in the run file.
    ``send_seed`` sends a seed with each sampled query, for endpoints that heed it. ``batch`` asks through
    the provider's batches, all first queries in one round. ``subset`` asks so many of the items, a random
    part with the file's shares of labels and parts; a run may be continued with more.
    """

    model: str
    base_url: str = OPENAI
    api: Api = "chat"
    api_version: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 60.0
    positive: str | None = None
    negative: str | None = None
    positive_ids: tuple[int, ...] = ()
    negative_ids: tuple[int, ...] = ()
    tokenizer: str | None = None
    semantics: Semantics = "pair"
    method: str = "latent"
    estimator: str = "own"
    instruction: str | None = None
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
    data_dir: str | None = None
    by_field: str | None = None
    keep_prompts: bool = True
    send_seed: bool = False
    batch: bool = False
    subset: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        read_by(self.method, self.estimator)
        _check("level", self.level, 0 < self.level < 1, "between 0 and 1")
        _check("seed", self.seed, _whole(self.seed, 0), "a whole number from 0 up")
        _check("bins", self.bins, self.bins is None or _whole(self.bins, 1), "a whole number from 1 up")
        _check("queries", self.queries, self.queries is None or _positive(self.queries), "a number above 0")
        few = self.queries is None or self.queries <= MOST_QUERIES
        _check("queries", self.queries, few, f"at most {MOST_QUERIES} an item: more would tell nothing more")
        _check(
            "items", self.subset, self.subset is None or _whole(self.subset, 1), "a whole number from 1 up"
        )
        _check("timeout", self.timeout, _positive(self.timeout), "a number of seconds above 0")
        _check("offset", self.offset, _finite(self.offset), "a finite number")
        _check("limit", self.limit, _positive(self.limit), "a number above 0")
        if self.method == "blind" and self.queries not in (None, METHODS["blind"].queries):
            raise ConfigError(
                f"queries: blind always asks 1 - 1/bins an item, not {self.queries:g}; "
                "leave it out, or choose a method that can ask more, such as latent"
            )
        if self.method == "verbalized" and self.queries not in (None, 1):
            raise ConfigError(f"queries: verbalized asks each item once, not {self.queries:g} times")
        if self.instruction is not None and self.method != "verbalized":
            raise ConfigError(f"instruction: only verbalized asks in words of its own, not {self.method}")

    @property
    def reading(self) -> RecordFormat:
        """How a record becomes an item."""
        role = "prompt" if self.api == "completions" else "user"
        return RecordFormat(
            self.template,
            self.label_map,
            self.label_field,
            self.id_field,
            self.group_field,
            self.system,
            role,
            self.by_field,
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

    @property
    def words(self) -> tuple[str, str]:
        """The positive and the negative answer word."""
        return self.positive or DEFAULT_WORDS[0], self.negative or DEFAULT_WORDS[1]

    @property
    def reads(self) -> Estimator:
        """The estimator that makes figures of the answers."""
        return read_by(self.method, self.estimator)

    @property
    def measured(self) -> str:
        """What is measured: pair, max or sum (METHOD 1), or what is stated in words."""
        return METHODS[self.method].semantics(self.semantics)

    def resolved(self, n: int, words: tuple[str, str] | None = None, *, budgeted: bool = False) -> Settings:
        """With the defaults filled in that depend on the method, the number of items and their own words.

        If ``budgeted``, a budget decides the number of queries later.
        """
        positive, negative = words or DEFAULT_WORDS
        bins = bins_blind(min(n, self.subset or n)) if self.method == "blind" else DEFAULT_BINS
        return replace(
            self,
            queries=METHODS[self.method].queries if self.queries is None and not budgeted else self.queries,
            bins=bins if self.bins is None else self.bins,
            positive=self.positive or positive,
            negative=self.negative or negative,
        )

    def fixed(self, items: Items) -> dict[str, Any]:
        """What a run may not be continued with once it has begun with another: all that shapes a query."""
        free = {
            "api_key_env",
            "timeout",
            "level",
            "resamples",
            "by_field",
            "estimator",
            "data_dir",
            "subset",
            *(() if self.method == "blind" else ("bins",)),
            *(() if self.batch else ("batch",)),  # runs begun before there were batches go on
        }
        shaping = {name: value for name, value in asdict(self).items() if name not in free}
        return plain({**shaping, "items": len(items), "items_digest": items.digest})


def _check(name: str, value: object, holds: bool, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {rule}, not {value!r}")


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and value >= least


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _positive(value: float) -> bool:
    return _finite(value) and value > 0


def known_prices(settings: Settings) -> Prices | None:
    """OpenAI's list prices, for its own models at its own address."""
    if settings.base_url.rstrip("/") != OPENAI:
        return None
    return next(
        (Prices(*each) for name, each in LIST_PRICES.items() if settings.model.startswith(name)), None
    )


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON: lists, and ``None`` for what is no number."""
    return msgspec.json.decode(msgspec.json.encode(value), type=dict[str, Any])
