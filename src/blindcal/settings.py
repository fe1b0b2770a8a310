"""Settings of an audit: the endpoint, the prompts, the design of the queries, and the estimation."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any

import msgspec

from blindcal.endpoints.address import DECISION_APIS, OPENAI, Address, default_base_url
from blindcal.endpoints.query_format import ANSWER_TOKENS, STATED_TOKENS
from blindcal.errors import InputError
from blindcal.estimate.truth import bins_blind
from blindcal.field_rules import (
    Bias,
    Bins,
    FieldRule,
    FromOne,
    FromZero,
    Level,
    PerItem,
    Refits,
    check_fields,
    rules_of,
)
from blindcal.items.question_files import Items
from blindcal.items.record_format import RecordFormat
from blindcal.methods import ASSUMED, AUTO, METHOD_OF, METHODS, estimator_of
from blindcal.prices import Prices, list_prices
from blindcal.records import AnswerFormat, EstimatorName, Semantics, Way
from blindcal.text import printable

DEFAULT_BINS = 5
DEFAULT_WORDS = ("Yes", "No")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings(RecordFormat):
    """How a record becomes a prompt, and which words answer it."""

    positive: Annotated[str | None, "Positive answer word. By default the items' own, else Yes."] = None
    negative: Annotated[str | None, "Negative answer word. By default the items' own, else No."] = None
    positive_ids: Annotated[
        tuple[int, ...], "Token ids of the positive answer. By default looked up with the tokenizer."
    ] = ()
    negative_ids: Annotated[
        tuple[int, ...], "Token ids of the negative answer. By default looked up with the tokenizer."
    ] = ()
    tokenizer: Annotated[
        str | None,
        "Tokenizer of the model: a tokenizer.json or its folder, a Hugging Face name, or an OpenAI encoding "
        "such as o200k_base. By default the endpoint's /tokenize, else OpenAI's for its models.",
    ] = None
    semantics: Annotated[
        Semantics | None,
        "Spellings that count as an answer: the one that the model prefers (pair), the likeliest of all "
        "(max), or all of them together (sum). By default pair; for logprobs sum.",
    ] = None
    confidence_wording: Annotated[
        str | None,
        "Wording in which verbalized asks for a confidence, with {positive} and {negative} for the words.",
    ] = None
    graded: Annotated[
        bool, "Whether the answers are levels, from the lowest to the highest; a decision API then scores."
    ] = False
    answer_format: Annotated[
        AnswerFormat | None,
        "Form of the answers: one word, a sentence or longer text that settles on one, or JSON. By default "
        "the form that the probe shows to work.",
    ] = None
    max_tokens: Annotated[
        FromOne | None,
        "Maximum number of tokens per answer. Hidden reasoning counts: a model that reasons needs thousands. "
        "By default 1 for a word, 512 for a sentence, 64 for JSON and for verbalized.",
    ] = None
    keep_prompts: Annotated[
        bool, "Whether the run file holds the prompts; without them it holds their hashes."
    ] = True

    def __post_init__(self) -> None:
        RecordFormat.__post_init__(self)
        if self.answers and (self.positive is not None or self.negative is not None):
            raise InputError("answers: names all answer words; leave out positive and negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignSettings:
    """Which queries are asked."""

    method: Annotated[
        str, "Method that asks and estimates; auto chooses the best that the endpoint allows."
    ] = AUTO
    queries: Annotated[
        PerItem | None, "Mean number of queries per item; may be a fraction. By default the method's own."
    ] = None
    sample: Annotated[
        FromOne | None,
        "Stratified random sample of N items; a run can be continued with a larger N. By default all items.",
    ] = None
    seed: Annotated[FromZero, "Random seed of the design and of drawn answers."] = 0
    offset: Annotated[Bias, "Bias added to both answers, so that the model says nothing else."] = 50.0
    limit: Annotated[Bias, "Largest bias that the service accepts."] = 100.0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.method not in (AUTO, *METHODS):
            raise InputError(f"method must be one of {', '.join((AUTO, *METHODS))}, not {self.method!r}")
        if self.offset >= self.limit:
            raise InputError(f"offset must be below limit = {self.limit:g}, not {self.offset:g}")
        if self.queries is not None and self.method != AUTO:
            METHODS[self.method].check_queries(self.queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimationSettings:
    """How answers are read; a finished run can be read again with other settings, at no cost."""

    estimator: Annotated[
        str,
        "Estimator that reads the answers: the method's own, or the maximum likelihood of latent; may be "
        "changed for a finished run.",
    ] = "own"
    bins: Annotated[Bins | None, "Number of bins of the ECE. By default 5; for blind round(N^(1/5))."] = None
    level: Annotated[Level, "Confidence level of the intervals."] = 0.95
    resamples: Annotated[Refits, "Number of refits behind the intervals."] = 1000

    def __post_init__(self) -> None:
        check_fields(self)


_PARTS: dict[str, Any] = {
    "endpoint": Address,
    "prompt": PromptSettings,
    "design": DesignSettings,
    "estimation": EstimationSettings,
}
SETTINGS: dict[str, FieldRule] = {
    name: rule for kind in _PARTS.values() for name, rule in rules_of(kind).items()
}
"""Rules of all settings, by name."""
SETTINGS["reasoning_effort"] = FieldRule(
    name="reasoning_effort",
    about="How much a model reasons, such as low; sent in the extra body.",
    default=None,
    hint=str | None,
    kind=str,
    rule="text",
)
_PART_OF = {field.name: part for part, kind in _PARTS.items() for field in fields(kind) if field.init}
# Options that shape no query, and may change when a run is continued.
_FREE = {
    *("api_key_env", "timeout", "data_dir", "sample", "role"),
    *("level", "resamples", "by_field", "estimator", "verdict_field", "strata_field"),
}
# Options that matter if a file gives the confidences: the second ones do only then.
_READ_FROM_FILES = (
    *("model", "method", "queries", "seed", "label_field", "label_map", "id_field", "group_field"),
    "answers",
)
_GIVEN = ("confidence_field", "answer_field", "percent")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Settings:
    """Settings of an audit, in four parts; every option can be given by its own name.

    ``Settings(model="my-model", template="{question}?")`` sets ``endpoint.model`` and ``prompt.template``.
    Options override those of a part given as a whole. ``reasoning_effort="low"`` sets that field in the
    endpoint's ``extra_body``.

    Examples
    --------
    >>> settings = Settings(model="my-model", template="{question}?", seed=7)
    >>> settings
    Settings(model='my-model', template='{question}?', seed=7)
    >>> settings.replace(method="temperature").design.method
    'temperature'
    """

    endpoint: Address
    prompt: PromptSettings
    design: DesignSettings
    estimation: EstimationSettings

    def __init__(self, *, reasoning_effort: str | None = None, **options: Any) -> None:
        parts = {name: options.pop(name) for name in _PARTS if name in options}
        changed: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
        for name, value in options.items():
            if name not in _PART_OF:
                raise unknown_setting(name)
            changed[_PART_OF[name]][name] = value
        held = {**asdict(parts["prompt"]), **changed["prompt"]} if "prompt" in parts else changed["prompt"]
        field = held.get("confidence_field") or held.get("verdict_field")
        if "endpoint" not in parts:
            if "model" not in options and field is None:
                raise InputError("a model is required: model='...' names the one to audit")
            if field is not None:
                changed["endpoint"] = {"model": options.get("model", field), "base_url": ""}
            changed["endpoint"].setdefault("base_url", default_base_url())
        for name, kind in _PARTS.items():
            part = replace(parts[name], **changed[name]) if name in parts else kind(**changed[name])
            object.__setattr__(self, name, part)
        if reasoning_effort is not None:
            self._set_reasoning_effort(reasoning_effort)
        self._settle_method()
        self._settle_api()
        role = "prompt" if self.endpoint.api == "completions" else "user"
        object.__setattr__(self, "prompt", replace(self.prompt, role=role))
        self._check_api()
        estimator_of(self.assumed_method, self.estimation.estimator)
        if self.prompt.confidence_wording is not None and self.design.method not in (AUTO, "verbalized"):
            raise InputError(
                f"confidence_wording: only verbalized asks in words of its own, not {self.design.method}"
            )
        self._check_answers()

    @classmethod
    def noted(cls, config: dict[str, Any]) -> Settings:
        """Restore the settings in a run file; options that a run leaves free have their defaults."""
        lists = {name: tuple(value) for name, value in config.items() if isinstance(value, list)}
        return cls(**{name: value for name, value in (config | lists).items() if name in _PART_OF})

    def _set_reasoning_effort(self, effort: str) -> None:
        if self.endpoint.api not in ("auto", "chat"):
            raise InputError("reasoning_effort: is a field of the chat API, not of plain completions")
        body = {**self.endpoint.extra_body, "reasoning_effort": effort}
        object.__setattr__(self, "endpoint", replace(self.endpoint, extra_body=body))

    def _settle_method(self) -> None:
        """Confidences in a file are read by one method, which reads nothing else."""
        if self.given and self.auto:
            object.__setattr__(self, "design", replace(self.design, method="given"))
        elif self.given != (self.design.method == "given"):
            raise InputError(
                "method: given reads the confidences in a field, and no other method does",
                remedy="leave {method} out, and name the field with {confidence_field}",
                options={"method": self.design.method, "confidence_field": ...},
            )

    def _settle_api(self) -> None:
        """A method that reads text, and a field of chats, mean a chat."""
        text = self.design.method not in (AUTO, "decisions") or "reasoning_effort" in self.endpoint.extra_body
        if self.endpoint.api == "auto" and text:
            object.__setattr__(self, "endpoint", replace(self.endpoint, api="chat"))

    def _check_api(self) -> None:
        """A decision API shows probabilities, and nothing else can be audited there."""
        decides = self.endpoint.api in DECISION_APIS
        if decides and self.auto:
            object.__setattr__(self, "design", replace(self.design, method="decisions"))
        elif decides and self.design.method != "decisions":
            raise InputError(
                "method: a decision API shows probabilities, which no other method reads",
                remedy="leave {method} out",
                options={"method": self.design.method},
            )
        elif self.design.method == "decisions" and self.endpoint.api not in (*DECISION_APIS, "auto"):
            raise InputError(
                "method: probabilities of decisions, which {api} shows",
                remedy="name its form with {api}",
                options={"api": "decisions"},
            )

    def _check_answers(self) -> None:
        if self.auto:
            return
        name, method, prompt = self.design.method, METHODS[self.design.method], self.prompt
        if self.estimator_name == "stated" and prompt.answer_format is not None:
            raise InputError(f"answer_format: {name} asks for a confidence too, in a form of its own")
        if self.free_text and not method.free_text:
            raise InputError(
                f"answer_format: {name} reads answers of one token, and a {prompt.answer_format} has more",
                remedy="leave {answer_format} out, or use {method}",
                options={"answer_format": prompt.answer_format, "method": "temperature"},
            )
        if self.summed and not method.fitted:
            raise InputError(
                f"semantics: {name} reads exact thresholds, and answers that follow a sum are noisy",
                remedy="use {method}, which allows for it",
                options={"method": "latent"},
            )
        if method.biased and prompt.max_tokens not in (None, 1):
            raise InputError(f"max_tokens: {name} reads answers of one token, not of {prompt.max_tokens}")

    def __repr__(self) -> str:
        usual = {**Settings(model="", base_url=OPENAI)._flat, "role": self.prompt.role}
        shown = [f"{name}={value!r}" for name, value in self._flat.items() if value != usual[name]]
        text = f"Settings({', '.join(shown)})"
        return text if len(text) <= 200 else text[:196] + "...)"

    def replace(self, **options: Any) -> Settings:
        """Return these settings with some options changed."""
        return Settings(**{**{name: getattr(self, name) for name in _PARTS}, **options})

    @property
    def _flat(self) -> dict[str, Any]:
        return {name: value for part in _PARTS for name, value in asdict(getattr(self, part)).items()}

    @property
    def auto(self) -> bool:
        """Whether the method is still to be chosen."""
        return self.design.method == AUTO

    @property
    def given(self) -> bool:
        """Whether a file gives the confidences, so that nothing is asked."""
        return self.prompt.confidence_field is not None

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to audit that the API and the method leave, best first."""
        if not self.auto:
            return (METHODS[self.design.method].way,)
        ways = [way for way in METHOD_OF if way != "decisions" or self.endpoint.api == "auto"]
        if self.free_text:
            return tuple(way for way in ways if METHODS[METHOD_OF[way]].free_text)
        long = self.prompt.max_tokens not in (None, 1)
        return tuple(way for way in ways if not (long and METHODS[METHOD_OF[way]].biased))

    @property
    def assumed_method(self) -> str:
        """The method, or the one to assume until it is chosen."""
        return ASSUMED if self.auto else self.design.method

    @property
    def estimator_name(self) -> EstimatorName:
        """Name of the estimator that reads the answers."""
        return estimator_of(self.assumed_method, self.estimation.estimator)

    @property
    def semantics(self) -> str:
        """What is measured: pair, max or sum (METHOD 1), the configured endpoint, or a stated confidence."""
        return METHODS[self.assumed_method].semantics(self.target_semantics)

    @property
    def target_semantics(self) -> Semantics:
        """Semantics by which the answer tokens are chosen."""
        return self.prompt.semantics or METHODS[self.assumed_method].usual_semantics

    @property
    def summed(self) -> bool:
        """Whether threshold answers follow the sum of several spellings."""
        return METHODS[self.assumed_method].summed(self.target_semantics)

    @property
    def free_text(self) -> bool:
        """Whether answers may be longer than a word."""
        return self.prompt.answer_format in ("sentence", "json")

    @property
    def probed(self) -> bool:
        """Whether the endpoint is probed first; a confidence in words needs no probe."""
        return self.estimator_name != "stated"

    def max_tokens(self, form: AnswerFormat) -> int:
        """Maximum number of tokens of an answer of this form."""
        usual = STATED_TOKENS if self.estimator_name == "stated" else ANSWER_TOKENS[form]
        return usual if self.prompt.max_tokens is None else self.prompt.max_tokens

    @property
    def list_prices(self) -> Prices | None:
        """OpenAI's list prices, for its own models at its own URL."""
        return list_prices(self.endpoint.model) if self.endpoint.base_url == OPENAI else None

    @property
    def answer_words(self) -> tuple[str, ...]:
        """The positive and the negative answer word, or all words if there are more than two."""
        if self.prompt.answers:
            return self.prompt.answers
        return self.prompt.positive or DEFAULT_WORDS[0], self.prompt.negative or DEFAULT_WORDS[1]

    def resolved(self, n: int, words: tuple[str, ...] | None = None) -> Settings:
        """Fill in the defaults that depend on method, items and words; ``auto`` leaves ``queries`` open."""
        design = self.design
        bins = bins_blind(min(n, design.sample or n)) if design.method == "blind" else DEFAULT_BINS
        several = len(words or self.prompt.answers) > 2
        usual = None if self.auto else METHODS[design.method].usual_queries(several=several)
        return self.replace(
            queries=usual if design.queries is None else design.queries,
            bins=self.estimation.bins or bins,
            # labels and answers in a file are read by the words that it was surveyed for
            **({} if self.given else self._resolved_words(words or self.prompt.answers or DEFAULT_WORDS)),
            semantics=self.prompt.semantics if self.auto else self.target_semantics,
        )

    def _resolved_words(self, words: tuple[str, ...]) -> dict[str, Any]:
        prompt = self.prompt
        if len(words) == 2:
            positive, negative = prompt.positive or words[0], prompt.negative or words[1]
            return {"answers": (), "positive": positive, "negative": negative}
        for name in ("positive", "negative", "positive_ids", "negative_ids"):
            if getattr(prompt, name):
                raise InputError(
                    f"{name}: is for two answers, and the items have {len(words)}: "
                    f"{printable(', '.join(words), 80)}; leave it out"
                )
        return {"answers": words}

    @property
    def queries(self) -> float:
        """Mean queries per item; settings must be resolved."""
        assert self.design.queries is not None, "settings are resolved first"
        return self.design.queries

    @property
    def bins(self) -> int:
        """Bins of the ECE; settings must be resolved."""
        assert self.estimation.bins is not None, "settings are resolved first"
        return self.estimation.bins

    def fixed(self, items: Items) -> dict[str, Any]:
        """Every option that shapes a query, and the items' digest; a run continues only with the same."""
        free = _FREE if self.design.method == "blind" else {*_FREE, "bins"}
        shaping = {name: value for name, value in self._flat.items() if name not in free}
        if self.given:
            shaping = {name: value for name, value in shaping.items() if name in (*_READ_FROM_FILES, *_GIVEN)}
        else:
            shaping = {name: value for name, value in shaping.items() if name not in _GIVEN}
        config = {**shaping, "items": len(items), "items_digest": items.digest}
        return msgspec.json.decode(msgspec.json.encode(config), type=dict[str, Any])  # plain JSON values


def unknown_setting(name: str, known: Iterable[str] = SETTINGS) -> InputError:
    near = difflib.get_close_matches(name, list(known), 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return InputError(f"{printable(name, 80)!r} is not a setting{hint}")
