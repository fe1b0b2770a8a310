"""Options and arguments that several commands share, and their checks.

An option that sets a field of a record (`Settings`, `Limits`) takes its type, default and help from the
field's annotation. Settings without an option of their own are given by ``--set NAME=VALUE``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import click

from blindcal.asking.run_context import Limits, RunOptions
from blindcal.cli.console import AUDIT_SETTINGS, FLAGS, print_stage, print_warning
from blindcal.endpoints.address import Address
from blindcal.errors import InputError, StoreError
from blindcal.field_rules import HIGHEST_LEVEL, FieldRule, rules_of
from blindcal.methods import AUTO, ESTIMATOR_CHOICES, METHODS
from blindcal.prices import Prices, list_prices
from blindcal.progress_bar import ProgressBar
from blindcal.settings import SETTINGS, Settings, unknown_setting
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
T = TypeVar("T")
PathOrPaths = TypeVar("PathOrPaths", Path, tuple[Path, ...])

MOST_SHOWN = 18
"""Options that a command shows, ``--help`` included; with more, ``--help-all`` shows the rare ones too."""
_EVERY = "blindcal.help_all"
_GROUPS = {
    "Endpoint": ("model", "base_url", "api", "api_key_env", "extra_body", "timeout"),
    "Questions": (
        *("self_check", "template", "instructions", "answers", "label_field", "label_map", "id_field"),
        *("by_field", "sample", "confidence_field", "answer_field", "verdict_field", "strata_field"),
    ),
    "Method": ("method", "queries", "seed", "max_tokens", "changed", "force", "resamples"),
    "Cost": (
        *("max_cost", "given_prices", "dry_run", "max_queries", "concurrency", "rpm", "tpm"),
        *("tokens", "half_width"),
    ),
    "Limits": (
        *("max_ece", "max_smece", "max_brier", "min_accuracy", "min_auroc", "max_aurc", "min_coverage"),
        *("max_invalid", "confidence", "estimate", "strict", "by_part", "partial"),
        *("certificate", "min_precision"),
    ),
    "Output": (
        *("out", "name", "oracle", "verbose", "as_json", "quiet", "junit_file", "summary_file", "annotate"),
    ),
}
_RARE = {
    *("answer_field", "strata_field", "name", "given_prices", "api", "extra_body", "self_check"),
    *("instructions", "label_map", "queries", "seed", "max_tokens", "changed", "resamples"),
    *("max_queries", "concurrency", "rpm", "tpm", "oracle", "force", "quiet"),
    *("max_smece", "max_aurc", "min_coverage", "summary_file", "annotate"),
}
_LISTED = re.compile(r"^( +\S+(?: \S+)*(?: +K=\S+)? {2,})(?=\S).*$", re.MULTILINE)

_METAVARS: dict[Any, str] = {int: "N", float: "NUMBER", tuple: "TEXT,TEXT", Mapping: "JSON"}


# Commands and their help


class Command(click.Command):
    """A command whose help shows options in groups, and only those that most users need if there are many."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        if not _many(params):
            return params
        about = "Show this message with all options, and exit."
        every = click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, help=about)
        every.callback = _print_all
        return [*params, every]

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Wrap the second column of lists, which click leaves as they are."""
        width, text = formatter.width - 2, self.help or ""

        def hanging(line: re.Match[str]) -> str:
            return textwrap.fill(line[0], width, subsequent_indent=" " * len(line[1]), break_on_hyphens=False)

        self.help = _LISTED.sub(hanging, text)
        super().format_help_text(ctx, formatter)
        self.help = text

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = self.get_params(ctx)
        every = not _many(params) or ctx.meta.get(_EVERY, False)
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (*_GROUPS, "Other options")}
        for param in params:
            shown = isinstance(param, click.Option) and (every or param.name not in _RARE)
            if shown and (record := param.get_help_record(ctx)) is not None:
                named = (name for name, members in _GROUPS.items() if param.name in members)
                groups[next(named, "Other options")].append(record)
        if not _many(params):
            groups = {"Options": [record for records in groups.values() for record in records]}
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _many(params: Sequence[click.Parameter]) -> bool:
    return sum(isinstance(param, click.Option) for param in params) > MOST_SHOWN


def _print_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_EVERY] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def command(name: str) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command)


# Types that click lacks


class FiniteRange(click.FloatRange):
    """A range without ``nan``, which passes every range check of click, and without ``inf``."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class Parsed(click.ParamType):  # type: ignore[type-arg]  # before 8.4, click's own takes no type
    """A type whose values ``parse`` reads; the help shows ``name``."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except InputError as error:
            self.fail(str(error), param, ctx)


def field_value(rule: FieldRule, text: str) -> Any:
    """Parse a field; shells pass ``\\n`` and ``\\t`` in a prompt as two characters each."""
    if rule.name in ("template", "system", "instructions", "confidence_wording"):
        text = text.replace("\\n", "\n").replace("\\t", "\t")
    return rule.parse(text)


PATH = click.Path(path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
POSITIVE_NUMBER = FiniteRange(0, min_open=True)
SHARE = FiniteRange(0, 1)
CONFIDENCE = FiniteRange(0.5, HIGHEST_LEVEL)
INNER_SHARE = FiniteRange(0, 1, min_open=True, max_open=True)

RULES = {**rules_of(Limits), **SETTINGS}
#: Attributes of options that the field's annotation does not give.
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "model": {"required": True},
    "base_url": {"metavar": "URL"},
    "api_key_env": {"metavar": "NAME"},
    "method": {"type": click.Choice([AUTO, *METHODS]), "metavar": "METHOD"},
    "estimator": {"type": click.Choice(ESTIMATOR_CHOICES)},
    "queries": {"metavar": "K"},
    "label_field": {"metavar": "FIELD"},
    "by_field": {"metavar": "FIELD"},
    "confidence_field": {"metavar": "FIELD"},
    "answer_field": {"metavar": "FIELD"},
    "verdict_field": {"metavar": "FIELD"},
    "strata_field": {"metavar": "FIELD"},
    "max_cost": {"metavar": "DOLLARS"},
}


def combined(*options: Decorator) -> Decorator:

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def taken(kind: Callable[..., T], given: dict[str, Any]) -> T:
    """Make a record from the options named like its fields, and remove them from ``given``."""
    return kind(**{name: given.pop(name) for name in signature(kind).parameters if name in given})


def fill_help(command: click.Command, **values: object) -> None:
    for name, value in values.items():
        command.help = (command.help or "").replace(f"{{{name}}}", str(value))


# Fields of records


def field(name: str, record: Any = None, **attributes: Any) -> Decorator:
    """The option for a field of a record, by default `Settings` or `Limits`; ``attributes`` override it."""
    rule = RULES[name] if record is None else rules_of(record)[name]
    usual: dict[str, Any] = {"help": rule.about}
    if rule.kind is bool:
        usual["is_flag"] = True
    else:
        choice = get_origin(rule.kind) is Literal
        metavar = _METAVARS.get(get_origin(rule.kind) or rule.kind, "TEXT")
        parsed = Parsed(metavar, lambda text: field_value(rule, text))
        usual["type"] = click.Choice(get_args(rule.kind)) if choice else parsed
        usual["default"] = rule.default if isinstance(rule.default, str | int | float) else None
    flag = FLAGS.get(name, f"--{name.replace('_', '-')}")
    return click.option(flag, name, **{**usual, **_ATTRIBUTES.get(name, {}), **attributes})


def fields(*names: str) -> Decorator:
    return combined(*map(field, names))


def record_fields(record: Any) -> Decorator:
    return combined(*(field(name, record) for name in rules_of(record)))


def set_option(*names: str, accepted: Iterable[str] = SETTINGS) -> Decorator:
    """``--set NAME=VALUE`` for the ``accepted`` settings; the help omits ``names``, which have options."""
    others = ", ".join(sorted(set(accepted).difference(names)))

    def parse(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
        changed = {}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.BadParameter(f"{printable(text, 80)!r} is not of the form NAME=VALUE")
            try:
                if name not in accepted:
                    raise unknown_setting(name, accepted)
                changed[name] = field_value(SETTINGS[name], value)
            except InputError as error:
                raise click.BadParameter(str(error)) from None
        return changed

    return click.option(
        "--set",
        "changed",
        multiple=True,
        metavar="NAME=VALUE",
        callback=parse,
        help=f"Another setting; may be repeated. NAME is one of {others}. docs/commands.md explains them.",
    )


def settings(*names: str, optional: tuple[str, ...] = ()) -> Decorator:
    """Options for these settings, by default those of an audit, and ``--set`` for the others."""
    names = names or AUDIT_SETTINGS
    given = (field(name, required=False) if name in optional else field(name) for name in names)
    return combined(*given, set_option(*names))


def chosen_settings(chosen: dict[str, Any], **more: Any) -> Settings:
    """The settings that a command's options give; ``--set`` overrides the others."""
    changed = chosen.pop("changed")
    given = {name: value for name, value in chosen.items() if value is not None}
    return Settings(**{**given, **more, **changed})


def _two_words(
    _: click.Context, __: click.Parameter, words: tuple[str, ...] | None
) -> tuple[str, str] | None:
    if words is not None and len(words) != 2:
        raise click.BadParameter("takes two words, the positive one first")
    return words


answer_pair_option = field(
    "answers",
    callback=_two_words,
    help="Answer words of a file of logits, the positive one first. By default those in the file, True and "
    "False, or Yes and No.",
)

# Runs


def existing_runs(_: click.Context, __: click.Parameter, given: PathOrPaths) -> PathOrPaths:
    """Raise an error that names the existing runs, if a given one does not exist."""
    for path in given if isinstance(given, tuple) else (given,):
        if not path.exists():
            runs = sorted(str(file.parent) for file in Path("runs").glob(f"*/{RUN_FILE}"))
            shown = ", ".join(printable(run, 80) for run in runs[:5]) + (", ..." if len(runs) > 5 else "")
            hint = f"existing runs: {shown}" if runs else "'blindcal audit' creates one, by default in runs/"
            raise StoreError(f"{printable(str(path), 200)}: no such run; {hint}")
    return given


def run_argument(name: str = "run", **attributes: Any) -> Decorator:
    return click.argument(name, type=PATH, callback=existing_runs, **attributes)


# Output


def json_option(prints: str = "Print one JSON object.") -> Decorator:
    return click.option("--json", "as_json", is_flag=True, help=prints)


def output_options(prints: str) -> Decorator:
    """``--json``, which ``prints`` something, and ``--quiet``."""
    return combined(json_option(prints), flag("--quiet", "Print errors only, and what --json prints."))


def flag(name: str, about: str, *short: str) -> Decorator:
    return click.option(*short, name, is_flag=True, help=about)


verbose_option = flag("--verbose", "Print all estimates, what they measure, and the queries.", "-v")


# Prices


def _prices(text: str) -> Prices:
    try:
        price_in, price_out = map(float, text.split(","))
        return Prices(price_in, price_out)
    except ValueError:
        raise InputError(f"{printable(text, 40)!r} is not two prices such as 0.15,0.6") from None


prices_option = click.option(
    "--prices",
    "given_prices",
    type=Parsed("IN,OUT", _prices),
    help="Dollars per million input and output tokens, such as 0.15,0.6. By default OpenAI's dated list "
    "prices, for its own models.",
)


limit_options = combined(fields("concurrency", "rpm", "tpm", "max_queries", "max_cost"), prices_option)


def prices(given: Prices | None, settings: Settings, *, quiet: bool = False) -> Prices | None:
    """The prices given, or OpenAI's list prices (with a notice of their date) at its own URL."""
    listed = settings.list_prices
    if given is not None or listed is None:
        return given
    if not quiet:
        print_warning(
            f"costs are at the list prices of {listed.listed}, ${listed.input:g} and ${listed.output:g} per "
            "million tokens; --prices sets others"
        )
    return listed


def check_priced(max_cost: float | None, prices: Prices | None, address: Address) -> None:
    """Raise an error if the cost is limited and the prices are unknown."""
    if max_cost is None or prices is not None:
        return
    model = printable(address.model, 60)
    why = f"none are known for {model!r}"
    if list_prices(address.model) is not None:
        where = printable(address.base_url, 80)
        why = f"those known for {model!r} are OpenAI's own, not those at {where}"
    raise click.UsageError(f"--max-cost requires --prices: {why}")


# Asking


@contextlib.contextmanager
def asking(
    settings: Settings, limits: Limits, given: Prices | None, *, quiet: bool, begun: bool
) -> Iterator[tuple[RunOptions, ProgressBar]]:
    """Check limits, prices and key, and show the progress; a run that has ``begun`` may need no key."""
    priced = prices(given, settings, quiet=quiet)
    check_priced(limits.max_cost, priced, settings.endpoint)
    check_key(settings.endpoint, begun=begun)
    with ProgressBar(disable=quiet or None) as bar:
        stage = None if quiet else bar.wrap_print(print_stage)
        yield {"limits": limits, "prices": priced, "progress": bar, "stage": stage}, bar


def check_key(address: Address, *, begun: bool = False) -> None:
    """Report a missing API key: only a warning if the run has ``begun``, as it may need no more queries."""
    name = printable(address.api_key_env, 80)
    address.check_key(begun=begun)
    host = address.keyless_host()
    source = click.get_current_context().get_parameter_source("api_key_env")
    if source is click.core.ParameterSource.COMMANDLINE and not os.environ.get(address.api_key_env):
        print_warning(f"{name}, named by --api-key-env, is not set: no key is sent")
    elif host is not None:
        print_warning(
            f"{name} is not set, so no key is sent to {printable(host, 80)}; if it requires one, set "
            "the variable or name another with --api-key-env"
        )
