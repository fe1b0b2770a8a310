"""Services that take less than an audit wants, each with its name, as behaviours of the replay."""

from __future__ import annotations

from blindcal.simulation.replay import Behaviour

#: What a reasoning model of OpenAI takes: neither bias nor temperature, and none of the samplers.
REASONING = Behaviour(
    bias="rejected",
    temperature="rejected",
    sampler_fields="all rejected",
    limit_name="max_completion_tokens",
    wording="sentence",
    reasoning_tokens=64,
    least_tokens=16,
)

BEHAVIOURS: dict[str, Behaviour] = {
    "bias refused": Behaviour(bias="rejected"),
    "bias ignored": Behaviour(bias="ignored"),
    "temperature refused": Behaviour(temperature="rejected"),
    "temperature ignored": Behaviour(temperature="fixed"),
    "greedy always": Behaviour(temperature="ignored"),
    "reasoning": REASONING,
    "logprobs only": Behaviour(bias="rejected", temperature="rejected", logprobs=True),
    "cut unless told otherwise": Behaviour(bias="rejected", min_p=0.05),
    "always cut": Behaviour(bias="rejected", min_p=0.05, sampler_fields="ignored"),
    "n ignored": Behaviour(bias="rejected", temperature="rejected", n="ignored"),
    "n identical": Behaviour(bias="rejected", temperature="rejected", n="identical"),
    "cached by prompt": Behaviour(cached=True),
    "cached by request": Behaviour(bias="rejected", cached_requests=True),
    "penalty unless told otherwise": Behaviour(repetition_penalty=1.1),
    "always a penalty": Behaviour(repetition_penalty=1.1, penalty_fields="ignored"),
}
