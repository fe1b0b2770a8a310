"""Options that several commands share: which endpoint, which answer words, which items."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from blindcal.cli.param_types import FiniteRange
from blindcal.endpoints import tokens
from blindcal.endpoints.base import Endpoint
from blindcal.endpoints.http import Address, HttpEndpoint, PlainHttpKeyWarning, keyless
from blindcal.errors import StoreError
from blindcal.items import catalogue, files
from blindcal.prices import Prices
from blindcal.records import Item
from blindcal.settings import DEFAULT_WORDS, Settings, known_prices
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T", Path, tuple[Path, ...])

OPENAI = "https://api.openai.com/v1"
PILOTS = 4


class JsonObject(click.ParamType[Mapping[str, Any]]):
    """An option whose value is a JSON object."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[str, Any]:
        """Parse the text of the option."""
        if isinstance(value, dict):
            return value
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.DecodeError as error:
            self.fail(f"is not a JSON object: {error}", param, ctx)


class TokenIds(click.ParamType[tuple[int, ...]]):
    """Token ids, separated by commas."""

    name = "ID,ID..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Parse the text of the option."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{printable(value)!r} is not a list of token ids such as 9642,10035", param, ctx)


def endpoint_options(command: Command) -> Command:
    """Add the options that say which endpoint is asked and how."""
    return _all(
        command,
        click.option("--model", required=True, help="The model's name (on Azure, the deployment's)."),
        click.option(
            "--base-url",
            default=OPENAI,
            envvar="OPENAI_BASE_URL",
            show_default=True,
            show_envvar=True,
            help="Where the endpoint is, up to and including /v1.",
        ),
        click.option(
            "--api",
            type=click.Choice(["chat", "completions"]),
            default="chat",
            show_default=True,
            help="Chat messages, or plain text for base models.",
        ),
        click.option(
            "--api-version", metavar="DATE", help="Azure's API version; switches to Azure's URL form."
        ),
        click.option(
            "--api-key-env",
            default="OPENAI_API_KEY",
            show_default=True,
            metavar="NAME",
            help="The environment variable that holds the API key. A key is never given on the command line.",
        ),
        click.option(
            "--extra-body",
            type=JsonObject(),
            default="{}",
            help="Fields added to every request, such as '{\"cache_prompt\": false}'; null takes one out.",
        ),
        click.option(
            "--timeout",
            type=FiniteRange(0, min_open=True),
            default=60.0,
            show_default=True,
            help="Seconds to wait for one reply.",
        ),
    )


level_option = click.option(
    "--level",
    type=FiniteRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="Of the intervals.",
)
resamples_option = click.option(
    "--resamples",
    type=click.IntRange(20),
    default=1000,
    show_default=True,
    help="Refits behind the intervals.",
)


def word_options(command: Command) -> Command:
    """Add the options that say which words or tokens mean positive and negative."""
    return _all(
        command,
        click.option(
            "--positive", help="The word for a positive answer.  [default: the items' own, else Yes]"
        ),
        click.option(
            "--negative", help="The word for a negative answer.  [default: the items' own, else No]"
        ),
        click.option(
            "--positive-ids", type=TokenIds(), default=(), help="Token ids instead of looking them up."
        ),
        click.option(
            "--negative-ids", type=TokenIds(), default=(), help="Token ids instead of looking them up."
        ),
        click.option(
            "--tokenizer",
            metavar="SOURCE",
            help="Where words become ids: a tokenizer.json, its folder, a Hugging Face name, or an OpenAI "
            "encoding such as o200k_base. By default OpenAI's for its models, else the endpoint's /tokenize.",
        ),
    )


def answer_options(command: Command) -> Command:
    """Add the options that say which tokens mean positive and negative, and how many of each count."""
    return _all(
        command,
        word_options,
        click.option(
            "--semantics",
            type=click.Choice(["pair", "max"]),
            default="pair",
            show_default=True,
            help="One token a side, chosen by asking the model; or every spelling of each word.",
        ),
    )


def record_options(command: Command) -> Command:
    """Add the options that say where a set's records are and how one becomes a question."""
    return _all(
        command,
        click.option(
            "--template",
            callback=with_line_breaks,
            help='The prompt, with record fields in braces: "{passage}\\n{question}?"',
        ),
        click.option(
            "--label-map", type=JsonObject(), help='Labels in other words: \'{"sure": 1, "never": 0}\'.'
        ),
        click.option(
            "--data-dir",
            metavar="FOLDER",
            help="Where the files of a set known by name are, instead of the Hugging Face Hub.",
        ),
    )


def reading_options(command: Command) -> Command:
    """Add the options that say how a record becomes what a model is asked."""
    return _all(
        command,
        record_options,
        click.option("--system", help="A system message put before every question."),
    )


def field_options(command: Command) -> Command:
    """Add the options that say which fields of a record mean what."""
    return _all(
        command,
        click.option(
            "--label-field", default="label", show_default=True, help="The field that holds the label."
        ),
        click.option("--id-field", default="id", show_default=True, help="The field that names an item."),
        click.option(
            "--group-field",
            default="group",
            show_default=True,
            help="The field that says which items belong together (questions about one text, say).",
        ),
    )


def price_options(command: Command) -> Command:
    """Add the options that say what tokens cost."""
    return _all(
        command,
        click.option(
            "--price-in",
            type=FiniteRange(0),
            metavar="DOLLARS",
            help="Per million tokens in.  [default for OpenAI's own models: indicative prices of 2025]",
        ),
        click.option(
            "--price-out",
            type=FiniteRange(0),
            metavar="DOLLARS",
            help="Per million tokens out; goes with --price-in.",
        ),
        click.option(
            "--batch-price",
            type=FiniteRange(0, 1),
            default=0.5,
            show_default=True,
            metavar="FACTOR",
            help="What a batch costs, as a share of the live price.",
        ),
    )


def prices(
    price_in: float | None, price_out: float | None, batch_price: float, settings: Settings
) -> Prices | None:
    """The prices given, or the model's list prices where these are known."""
    if (price_in is None) != (price_out is None):
        raise click.UsageError("--price-in and --price-out go together")
    if price_in is None or price_out is None:
        known = known_prices(settings)
        return None if known is None else Prices(known.input, known.output, batch_price)
    return Prices(price_in, price_out, batch_price)


def with_line_breaks(_: click.Context, __: click.Parameter, template: str | None) -> str | None:
    """A shell passes ``\\n`` on as two characters; here they are one."""
    return None if template is None else template.replace("\\n", "\n").replace("\\t", "\t")


def existing_runs(_: click.Context, __: click.Parameter, given: T) -> T:
    """Refuse a run that is not there with those that are, where they are looked for first."""
    for path in given if isinstance(given, tuple) else (given,):
        if not Path(path).exists():
            here = sorted(str(one.parent) for one in Path("runs").glob(f"*/{RUN_FILE}"))
            shown = ", ".join(printable(one, 80) for one in here[:5]) + (", ..." if len(here) > 5 else "")
            hint = f"here are {shown}" if here else "an audit makes one, in runs/ unless --out says otherwise"
            raise StoreError(f"{printable(str(path), 200)}: no such run; {hint}")
    return given


def load_items(source: Path, settings: Settings) -> files.Items:
    """The items of a file or a named set, read as the options say."""
    return catalogue.open_items(source, settings.reading, data_dir=settings.data_dir)


def answer_words(items: files.Items, positive: str | None, negative: str | None) -> tuple[str, str]:
    """The words that mean positive and negative: as chosen, else the items' own, else Yes and No."""
    own = items.words or DEFAULT_WORDS
    return positive or own[0], negative or own[1]


def open_endpoint(address: Address, *, begun: bool = False) -> HttpEndpoint:
    """The endpoint; what there is to warn about is said on standard error first.

    If a run is ``begun`` it may need nothing more of the endpoint, and a missing key may not matter.
    """
    check_key(address, begun=begun)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PlainHttpKeyWarning)
        endpoint = HttpEndpoint(address)
    for warning in caught:
        click.echo(f"warning: {warning.message}", err=True)
    return endpoint


def check_key(address: Address, *, begun: bool = False) -> None:
    """Say that there is no API key before anything else is done, if that is likely to matter.

    Raises
    ------
    ConfigError
        If nothing is begun yet and the endpoint is one that answers nothing without a key.
    """
    name = printable(address.api_key_env, 80)
    found = keyless(address)
    if found is not None and not begun:
        found.check()
    source = click.get_current_context().get_parameter_source("api_key_env")
    if source is click.core.ParameterSource.COMMANDLINE and not os.environ.get(address.api_key_env):
        click.echo(f"warning: {name}, named by --api-key-env, is not set: no key is sent", err=True)
    elif found is not None:
        click.echo(
            f"warning: {name} is not set, so no key is sent to {printable(found.host, 80)}; if it wants one, "
            "set that variable or name another with --api-key-env",
            err=True,
        )


async def choose_tokens(
    endpoint: HttpEndpoint, patient: Endpoint, pilots: Sequence[Item], settings: Settings
) -> tokens.Choice:
    """The answer tokens that the options ask for; pilot questions go through `patient`."""
    by_hand = bool(settings.positive_ids) and bool(settings.negative_ids)
    source = tokens.served(endpoint, endpoint.address.model)
    if not by_hand:
        source = tokens.find(endpoint, endpoint.address.model, settings.tokenizer)
    positive, negative = settings.words
    return await tokens.resolve(
        patient,
        source,
        pilots[:PILOTS],
        positive=positive,
        negative=negative,
        positive_ids=settings.positive_ids,
        negative_ids=settings.negative_ids,
        semantics=settings.semantics,
    )


def _all(command: Command, *options: Callable[[Command], Command]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
