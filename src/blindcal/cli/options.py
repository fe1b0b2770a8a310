"""Options and arguments that several commands share, and their checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args

import click

from blindcal.cli.console import print_warning
from blindcal.cli.param_types import JSON_OBJECT, TOKEN_IDS, FiniteRange
from blindcal.endpoints import http
from blindcal.endpoints.http import OPENAI, Address
from blindcal.errors import StoreError
from blindcal.methods import ESTIMATOR_CHOICES
from blindcal.prices import Prices, list_prices
from blindcal.records import AnswerFormat
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
T = TypeVar("T")
PathOrPaths = TypeVar("PathOrPaths", Path, tuple[Path, ...])

PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE_NUMBER = FiniteRange(0, min_open=True)
SHARE = FiniteRange(0, 1)
INNER_SHARE = FiniteRange(0, 1, min_open=True, max_open=True)


def combined(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which the help shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def taken(kind: Callable[..., T], given: dict[str, Any]) -> T:
    """A record made from the options that have the names of its fields; they are removed from ``given``."""
    return kind(**{name: given.pop(name) for name in signature(kind).parameters if name in given})


def fill_help(command: click.Command, **values: object) -> None:
    """Replace each ``{name}`` in the help of a command by its value."""
    for name, value in values.items():
        command.help = (command.help or "").replace(f"{{{name}}}", str(value))


def with_line_breaks(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    """Replace ``\\n`` and ``\\t``, which a shell passes as two characters, by a line break and a tab."""
    return None if text is None else text.replace("\\n", "\n").replace("\\t", "\t")


def existing_runs(_: click.Context, __: click.Parameter, given: PathOrPaths) -> PathOrPaths:
    """Raise an error for a run that does not exist, which names those that do."""
    for path in given if isinstance(given, tuple) else (given,):
        if not path.exists():
            here = sorted(str(one.parent) for one in Path("runs").glob(f"*/{RUN_FILE}"))
            shown = ", ".join(printable(one, 80) for one in here[:5]) + (", ..." if len(here) > 5 else "")
            hint = f"existing runs: {shown}" if here else "'blindcal audit' creates one, by default in runs/"
            raise StoreError(f"{printable(str(path), 200)}: no such run; {hint}")
    return given


def run_argument(name: str = "run", **attributes: Any) -> Decorator:
    """The folder of a run, or several."""
    return click.argument(name, type=PATH, callback=existing_runs, **attributes)


# The endpoint

base_url_option = click.option(
    "--base-url",
    default=OPENAI,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    help="Base URL of the endpoint, up to and including /v1.",
)
api_option = click.option(
    "--api",
    type=click.Choice(["chat", "completions"]),
    default="chat",
    help="Chat messages, or plain completions for base models.",
)
api_key_env_option = click.option(
    "--api-key-env",
    default="OPENAI_API_KEY",
    metavar="NAME",
    help="Environment variable that holds the API key. The key itself is never an argument.",
)
extra_body_option = click.option(
    "--extra-body",
    type=JSON_OBJECT,
    default="{}",
    show_default=False,
    help="Additional fields of every request, such as '{\"cache_prompt\": false}'; null removes a field.",
)
timeout_option = click.option(
    "--timeout", type=POSITIVE_NUMBER, default=60.0, metavar="SECONDS", help="Time to wait for one reply."
)
endpoint_options = combined(
    click.option("--model", required=True, help="Name of the model (on Azure, of the deployment)."),
    base_url_option,
    api_option,
    click.option("--api-version", metavar="DATE", help="API version of Azure; selects Azure's URLs."),
    api_key_env_option,
    extra_body_option,
    timeout_option,
)
rate_options = combined(
    click.option("--rpm", type=POSITIVE_NUMBER, help="Maximum number of requests per minute."),
    click.option("--tpm", type=POSITIVE_NUMBER, help="Maximum number of tokens per minute."),
)
send_seed_option = click.option(
    "--send-seed",
    is_flag=True,
    help="Send a seed with each sampled query, so that an endpoint that honours it repeats its answers.",
)


def concurrency_option(default: int = 32) -> Decorator:
    """The maximum number of concurrent requests."""
    return click.option(
        "--concurrency",
        type=click.IntRange(1),
        default=default,
        help="Maximum number of concurrent requests.",
    )


def port_option(default: int) -> Decorator:
    """The port of a local server."""
    return click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=default,
        help="Port of the server on 127.0.0.1; 0 chooses a free one.",
    )


# Records and prompts

template_option = click.option(
    "--template",
    callback=with_line_breaks,
    help='Prompt with record fields in braces: "{passage}\\n{question}?"',
)
data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    help="Folder with the files of a named set, instead of the Hugging Face Hub.",
)
label_field_option = click.option("--label-field", default="label", help="Field that holds the label.")
record_options = combined(
    template_option,
    click.option(
        "--label-map", type=JSON_OBJECT, help='Words that stand for the labels: \'{"sure": 1, "never": 0}\'.'
    ),
    data_dir_option,
)
answers_option = click.option(
    "--answers",
    metavar="WORD,WORD,...",
    help="All answers, if there are more than two or labels name them. The first of two is the positive "
    "one.  [default: the items' own]",
)
choice_options = combined(
    answers_option,
    click.option(
        "--permute", is_flag=True, help="Show the choices of each item in a random order of its own."
    ),
)
prompt_options = combined(
    record_options, click.option("--system", help="System message before every question.")
)
field_options = combined(
    label_field_option,
    click.option("--id-field", default="id", help="Field that holds the id of an item."),
    click.option(
        "--group-field",
        default="group",
        help="Field that names the group of an item: items of one group, such as questions about one text, "
        "are resampled together.",
    ),
)


# Answers


def answer_word_options(
    positive: str = "the items' own, else Yes", negative: str = "the items' own, else No"
) -> Decorator:
    """The two answer words; the arguments describe their defaults in the help."""
    return combined(
        click.option("--positive", metavar="WORD", help=f"Positive answer.  [default: {positive}]"),
        click.option("--negative", metavar="WORD", help=f"Negative answer.  [default: {negative}]"),
    )


token_options = combined(
    answer_word_options(),
    click.option(
        "--positive-ids",
        type=TOKEN_IDS,
        default=(),
        help="Token ids of the positive answer.  [default: looked up with --tokenizer]",
    ),
    click.option(
        "--negative-ids",
        type=TOKEN_IDS,
        default=(),
        help="Token ids of the negative answer.  [default: looked up with --tokenizer]",
    ),
    click.option(
        "--tokenizer",
        metavar="SOURCE",
        help="Tokenizer of the model: a tokenizer.json or its folder, a Hugging Face name, or an OpenAI "
        "encoding such as o200k_base.  [default: the endpoint's /tokenize, else OpenAI's for its models]",
    ),
)
spellings_option = click.option(
    "--semantics",
    type=click.Choice(["pair", "max"]),
    help="Spellings that count as an answer: the one that the model prefers, or the likeliest of all.  "
    "[default: pair]",
)
answer_options = combined(
    token_options,
    click.option(
        "--semantics",
        type=click.Choice(["pair", "max", "sum"]),
        help="Spellings that count as an answer: the one that the model prefers, the likeliest of all, or "
        "all of them together.  [default: pair; logprobs sums all]",
    ),
)


answer_format_options = combined(
    click.option(
        "--answer-format",
        type=click.Choice(get_args(AnswerFormat)),
        help="Form of the answers: one word, a sentence or longer text that settles on one, or JSON.  "
        "[default: what the probe finds]",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        metavar="N",
        help="Maximum number of tokens of an answer. Hidden reasoning counts: a model that reasons needs "
        "thousands.  [default: 1 for a word, 512 for a sentence, 64 for JSON and for verbalized]",
    ),
    click.option(
        "--reasoning-effort",
        metavar="LEVEL",
        help="How much a model reasons, such as low; sent as reasoning_effort.",
    ),
)


# Design and estimation

bias_options = combined(
    click.option(
        "--offset",
        type=float,
        default=50.0,
        help="Bias added to both answers, so that the model says nothing else.",
    ),
    click.option("--limit", type=float, default=100.0, help="Largest bias that the service accepts."),
)
level_option = click.option(
    "--level", type=INNER_SHARE, default=0.95, help="Confidence level of the intervals."
)
resamples_option = click.option(
    "--resamples", type=click.IntRange(20), default=1000, help="Number of refits behind the intervals."
)


def simultaneous_option(text: str) -> Decorator:
    """Statements about all parts of a breakdown at once."""
    return click.option("--simultaneous", is_flag=True, help=text)


def estimator_option(note: str = "") -> Decorator:
    """The estimator that reads the answers."""
    return click.option(
        "--estimator",
        type=click.Choice(ESTIMATOR_CHOICES),
        default="own",
        help="Estimator that reads the answers: the method's own, or the maximum likelihood of latent"
        f"{note}.",
    )


def seed_option(sets: str = "Random seed of the design.") -> Decorator:
    """A random seed."""
    return click.option("--seed", type=click.IntRange(0), default=0, help=sets)


def bins_option(default: int | None = None, note: str = "") -> Decorator:
    """The number of bins; ``note`` describes the default if it is not a single number."""
    return click.option(
        "--bins",
        type=click.IntRange(1),
        default=default,
        help=f"Number of bins of the ECE.{f'  [default: {note}]' if note else ''}",
    )


def queries_option(default: float | None = None, note: str = "") -> Decorator:
    """The mean number of queries per item; ``note`` describes the default as in `bins_option`."""
    return click.option(
        "--queries",
        type=POSITIVE_NUMBER,
        default=default,
        metavar="K",
        help=f"Mean number of queries per item; may be a fraction.{f'  [default: {note}]' if note else ''}",
    )


# Output


def json_option(prints: str = "Print one JSON object.") -> Decorator:
    """JSON output, for programs."""
    return click.option("--json", "as_json", is_flag=True, help=prints)


quiet_option = click.option("--quiet", is_flag=True, help="Print errors only, and what --json prints.")


# Prices

live_price_options = combined(
    click.option(
        "--price-in",
        type=FiniteRange(0),
        metavar="DOLLARS",
        help="Price per million input tokens.  [default for some models at OpenAI: a dated list price]",
    ),
    click.option(
        "--price-out",
        type=FiniteRange(0),
        metavar="DOLLARS",
        help="Price per million output tokens; requires --price-in.",
    ),
)
price_options = combined(
    live_price_options,
    click.option(
        "--batch-price",
        type=SHARE,
        default=0.5,
        metavar="FACTOR",
        help="Price of a batch as a fraction of the live price.",
    ),
)


def prices(
    price_in: float | None,
    price_out: float | None,
    batch_price: float,
    settings: Settings,
    *,
    quiet: bool = False,
) -> Prices | None:
    """The prices given, or OpenAI's list prices for its own models at its own URL, with their date."""
    if (price_in is None) != (price_out is None):
        raise click.UsageError("--price-in and --price-out go together")
    if price_in is not None and price_out is not None:
        return Prices(price_in, price_out, batch_price)
    listed = settings.list_prices
    if listed is None:
        return None
    if not quiet:
        print_warning(
            f"costs are at the list prices of {listed.listed}, ${listed.input:g} and ${listed.output:g} per "
            "million tokens; --price-in and --price-out set others"
        )
    return replace(listed, batch=batch_price)


def check_priced(
    max_cost: float | None, prices: Prices | None, address: Address, flag: str = "--max-cost"
) -> None:
    """Raise an error if the cost is limited, by the option ``flag``, and the prices are unknown."""
    if max_cost is None or prices is not None:
        return
    model = printable(address.model, 60)
    if list_prices(address.model) is not None:
        where = printable(address.base_url, 80)
        why = f"those known for {model!r} are OpenAI's own, not those at {where}"
    else:
        why = f"none are known for {model!r}"
    raise click.UsageError(f"{flag} requires --price-in and --price-out: {why}")


# The API key


def check_key(address: Address, *, begun: bool = False) -> None:
    """Report a missing API key before anything else is done, if it is likely to matter.

    It is an error if the endpoint is known to require one. For a run that has ``begun`` it is only a
    warning, because the run may need no more queries.
    """
    name = printable(address.api_key_env, 80)
    http.check_key(address, begun=begun)
    host = http.keyless_host(address)
    source = click.get_current_context().get_parameter_source("api_key_env")
    if source is click.core.ParameterSource.COMMANDLINE and not os.environ.get(address.api_key_env):
        print_warning(f"{name}, named by --api-key-env, is not set: no key is sent")
    elif host is not None:
        print_warning(
            f"{name} is not set, so no key is sent to {printable(host, 80)}; if it requires one, set "
            "the variable or name another with --api-key-env"
        )
