"""How the service around a replayed model differs from an ideal one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Fault: TypeAlias = Literal[
    "429", "500", "401", "404", "reset", "hang", "truncated", "html", "schema", "empty", "reasoning"
]
Dialect: TypeAlias = Literal["openai", "azure", "litellm", "vllm", "llama.cpp"]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the service differs from an ideal one; the default is ideal.

    Every bias is multiplied by ``bias_scale``. Of more than ``most_biases`` entries in ``logit_bias``, those
    after the first ones, or those with the ``lowest`` values, are ignored, or the request is rejected.
    ``jitter`` is the standard deviation of the noise on each
    logit, drawn anew for each request; ``crowd_jitter`` applies only while other requests are in flight.
    ``outside`` is the share of answers that are no answer token, and ``flipped`` the share that are
    replaced by the next answer. A ``cached`` service repeats its first answer to a prompt, and one with
    ``cached_requests`` its first reply to the same request.

    A request without a temperature is answered at ``own_temperature``; if the temperature is ``fixed``, every
    request is, and if it is ``ignored``, every answer is greedy. ``min_p`` and ``top_p`` cut sampled answers
    ``cut`` the temperature is applied, unless a request sets them and ``sampler_fields`` are honoured. If
    these are ``rejected``, so are all fields that OpenAI's API does not know, and ``all rejected`` includes
    ``top_p`` and the penalties. A ``repetition_penalty`` acts, after the bias, on answer words that stand in
    the prompt, unless a request sets another and ``penalty_fields`` are honoured. ``constraints`` is about
    the fields ``allowed_token_ids`` and ``structured_outputs``.

    With several answers asked for, ``n`` of them are drawn, or one, or one is repeated. At most
    ``top_logprobs`` are shown. A service whose ``wording`` is a sentence answers in free text. One that
    reasons bills ``reasoning_tokens`` that it does not show, and its answer is empty if they reach the limit.
    A limit on tokens below ``least_tokens`` is refused. Errors have the form of ``dialect``.

    ``fault`` hits a random share ``fault_share`` of the requests or, if ``fault_first`` is set, exactly the
    first ``fault_first`` requests. A random share ``bias_ignored`` of the requests goes to a machine that
    ignores the bias. ``drift`` is added to all log-odds. From request number ``later_from`` on, the service
    behaves as ``later`` says.
    """

    bias: Literal["honoured", "ignored", "rejected"] = "honoured"
    bias_scale: float = 1.0
    most_biases: int | None = None
    further_biases: Literal["ignored", "lowest", "rejected"] = "ignored"
    clamp: float | None = None
    integer_bias: bool = False
    jitter: float = 0.0
    crowd_jitter: float = 0.0
    outside: float = 0.0
    flipped: float = 0.0
    cached: bool = False
    cached_requests: bool = False
    temperature: Literal["honoured", "ignored", "rejected", "fixed"] = "honoured"
    own_temperature: float = 1.0
    min_p: float = 0.0
    top_p: float = 1.0
    cut: Literal["before", "after"] = "before"
    sampler_fields: Literal["honoured", "ignored", "rejected", "all rejected"] = "honoured"
    repetition_penalty: float = 1.0
    penalty_fields: Literal["honoured", "ignored"] = "honoured"
    constraints: Literal["honoured", "ignored", "rejected"] = "ignored"
    n: Literal["honoured", "ignored", "identical", "rejected"] = "honoured"
    logprobs: bool = False
    top_logprobs: int = 20
    wording: Literal["word", "sentence"] = "word"
    reasoning_tokens: int = 0
    latency: float = 0.0
    fault: Fault | None = None
    fault_share: float = 1.0
    fault_first: int | None = None
    retry_after: str | None = None
    limit_name: Literal["any", "max_completion_tokens"] = "any"
    least_tokens: int = 1
    dialect: Dialect = "openai"
    api_key: str | None = None
    tokenize: Literal["llama.cpp", "vllm", "none"] = "llama.cpp"
    seed: int = 0
    bias_ignored: float = 0.0
    drift: float = 0.0
    fingerprint: str | None = None
    later: Behaviour | None = None
    later_from: int = 0
