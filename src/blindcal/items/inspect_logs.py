"""Questions from the logs of Inspect (inspect_ai), read with its own reader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blindcal.errors import InputError, MissingExtraError
from blindcal.items.answers import LETTERS
from blindcal.items.logged_questions import LoggedAnswer, LoggedQuestion, prompt_digest
from blindcal.records import Message
from blindcal.text import encodable, printable

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.model import ChatMessage

# Options of Inspect that shape no answer which came to its end at temperature 0.
_HARMLESS = {
    *("max_retries", "timeout", "attempt_timeout", "stream_idle_timeout", "max_connections"),
    *("adaptive_connections", "max_tokens", "temperature", "top_p", "top_k", "seed"),
    *("logprobs", "top_logprobs", "cache", "cache_prompt", "batch", "fail_on_refusal", "max_tool_output"),
}
# Steps of a plan that ask the model once, in a way that the log shows.
_PLAIN_STEPS = {"generate", "system_message", "user_message", "prompt_template"}
# Providers that send a chat to a service over HTTP, as blindcal does.
_SERVICES = {
    *("openai", "openai-api", "azureai", "openrouter", "together", "fireworks", "groq", "mistral", "grok"),
    *("vllm", "sglang", "ollama", "llama-cpp-python", "hf-inference-providers", "sambanova", "perplexity"),
}


def inspect_questions(path: Path) -> Iterator[LoggedQuestion]:
    """The samples of a log, each once: of several epochs, the first."""
    log = _read(path)
    greedy, seen = _greedy(log), set[str]()
    for sample in log.samples or ():
        if str(sample.id) in seen:
            continue
        seen.add(str(sample.id))
        try:
            yield _question(sample, log, greedy)
        except InputError as error:
            raise error.prefixed(f"sample {printable(str(sample.id), 40)}: ") from None


def _read(path: Path) -> EvalLog:
    try:
        from inspect_ai.log import read_eval_log
    except ImportError:
        raise MissingExtraError(
            f"{path}: reading logs of Inspect needs inspect_ai", remedy="pip install 'blindcal[inspect]'"
        ) from None
    try:
        return read_eval_log(
            str(path), resolve_attachments="core", exclude_fields={"events", "store", "timelines"}
        )
    except Exception as error:  # what a damaged file raises is not documented
        why = printable(" ".join(str(error).split()), 120)
        raise InputError(f"{path}: is not a log that Inspect can read ({why})") from None


def _greedy(log: EvalLog) -> bool:
    """Whether every answer was asked for at temperature 0, with no option that shapes it otherwise."""
    from inspect_ai.model import GenerateConfig

    if any(step.solver.rpartition("/")[2] not in _PLAIN_STEPS for step in log.plan.steps):
        return False  # a step of its own may ask the model as it likes
    given = [part.model_dump(exclude_none=True) for part in (log.eval.model_generate_config, log.plan.config)]
    for step in log.plan.steps:
        own = {name: value for name, value in step.params.items() if value is not None}
        given.append({name: value for name, value in own.items() if name in GenerateConfig.model_fields})
    heats = [part["temperature"] for part in given if "temperature" in part]
    return bool(heats) and not any(heats) and all(set(part) <= _HARMLESS for part in given)


def _question(sample: EvalSample, log: EvalLog, greedy: bool) -> LoggedQuestion:
    sent = _sent(sample)
    messages = tuple(_message(one) for one in sent)
    question = sample.input if isinstance(sample.input, str) else _message(sample.input[-1]).content
    fields = {name: value for name, value in sample.metadata.items() if _plain(value)}
    answer = None
    if len(sent) < len(sample.messages) and not _reasoned(sample):
        finished = sample.output.stop_reason == "stop"
        text = encodable(sample.messages[-1].text)
        model = log.eval.model
        api = "chat" if model.partition("/")[0] in _SERVICES else ""
        asked = prompt_digest(messages)
        answer = LoggedAnswer(text, model, api, greedy, finished, asked, url=log.eval.model_base_url or "")
    choices = tuple(encodable(one) for one in sample.choices or ())
    target = _target(sample, choices)
    return LoggedQuestion(
        sample.id, messages, target, encodable(question), choices, answer=answer, fields=fields
    )


def _sent(sample: EvalSample) -> list[ChatMessage]:
    """The messages before the model's answer."""
    said = list(sample.messages)
    if said and said[-1].role == "assistant":
        said.pop()
    if not said:  # the sample failed before anything was sent
        raise InputError("nothing was sent to the model", remedy="run the sample again, or leave it out")
    given = [] if isinstance(sample.input, str) else sample.input
    turns, examples = (sum(one.role == "assistant" for one in part) for part in (said, given))
    calls = any(one.role == "tool" or _calls(one) for one in said)
    if said[-1].role != "user" or calls or turns > examples:
        raise InputError(
            "is a conversation of several turns or with tools, not a question",
            remedy="log a task that generates one answer per sample",
        )
    return said


def _reasoned(sample: EvalSample) -> bool:
    """Whether the model reasoned before its answer, which a query for one token leaves no room for."""
    said, usage = sample.messages[-1].content, sample.output.usage
    shown = not isinstance(said, str) and any(part.type == "reasoning" for part in said)
    return shown or bool(usage and usage.reasoning_tokens)


def _calls(message: ChatMessage) -> bool:
    return message.role == "assistant" and bool(message.tool_calls)


def _message(message: ChatMessage) -> Message:
    if not isinstance(message.content, str) and any(part.type != "text" for part in message.content):
        raise InputError("holds images or other parts that are not text", remedy="leave it out")
    return Message(message.role, encodable(message.text))


def _target(sample: EvalSample, choices: tuple[str, ...]) -> str:
    """The right answer: a word, or the letter of the right choice."""
    given = [sample.target] if isinstance(sample.target, str) else sample.target
    if len(given) != 1 or not given[0].strip():
        raise InputError(
            f"has {len(given)} targets" if len(given) != 1 else "has an empty target",
            remedy="an audit needs exactly one right answer per question: leave the others out",
        )
    target = given[0].strip()
    if not choices or target in LETTERS[: len(choices)]:
        return target
    if choices.count(target) == 1:
        return LETTERS[choices.index(target)]
    raise InputError(
        f"the target {printable(target, 40)!r} is not the letter of one of its {len(choices)} choices"
    )


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float)
