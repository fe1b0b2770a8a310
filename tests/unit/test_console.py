"""The command line without an endpoint: options, `--set`, what is printed, and the progress bar."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest

from blindcal.auditing.method_choice import UNREASONED
from blindcal.cli import COMMANDS, app
from blindcal.cli.console import command_line_option, with_flags
from blindcal.cli.result_summary import print_result
from blindcal.endpoints.address import Address
from blindcal.errors import InputError
from blindcal.progress_bar import ProgressBar
from blindcal.records import Progress, Usage
from commanding import blindcal
from paths import ROOT
from results import around, part
from results import result as made_up


def test_settings_in_a_stage_are_options_of_the_command_line() -> None:
    assert with_flags(f"chose repeated; {UNREASONED}").startswith(
        "chose repeated; with --set reasoning_effort=none logprobs are shown"
    )


def flags_of(command: str) -> set[str]:
    found = app.get_command(click.Context(app), command)
    assert found is not None
    return {option.opts[-1] for option in found.params if isinstance(option, click.Option)}


def test_few_commands_have_many_options() -> None:
    assert {name for name in COMMANDS if len(flags_of(name)) >= 20} == {"audit", "check"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_what_most_users_need(command: str) -> None:
    """It shows at most 18 options; --help-all shows all. Both fit 80 columns, but for examples."""
    shown, every = (blindcal(command, asked).output for asked in ("--help", "--help-all"))
    many = len(flags_of(command)) + 1 > 18
    assert many == ("--help-all" in shown)
    assert len(re.findall(r"^  (?:-\w, )?--", re.split(r"\n\w+:\n", shown, maxsplit=1)[1], re.M)) <= 18
    if many:
        assert {flag for flag in flags_of(command) if not re.search(rf"^  .*{flag}\b", every, re.M)} == set()
    long = [line for line in (shown + every).splitlines() if len(line) > 80]
    assert not [line for line in long if not re.search("blindcal |--template|--method", line)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("resample=20", "'resample' is not a setting; did you mean 'resamples'?"),
        ("resamples", "'resamples' is not of the form NAME=VALUE"),
        ("resamples=many", "resamples must be a whole number from 2 to 100000, not 'many'"),
        ("level=.9999999999999999", "level must be a number from 0.01 to 0.999999, not '.9999999999999999'"),
        ("level=nan", "level must be a number from 0.01 to 0.999999, not 'nan'"),
        ("keep_prompts=maybe", "keep_prompts must be true or false, not 'maybe'"),
        ("semantics=mean", "semantics must be one of pair, max, sum, not 'mean'"),
        ("positive_ids=1,x", "positive_ids must be a list of whole numbers, not '1,x'"),
        ("label_map={", "label_map must be a JSON object, not '{'"),
    ],
)
def test_a_wrong_setting_is_a_wrong_command_line(given: str, message: str) -> None:
    """`--set` names the rule that a setting breaks, before anything is read."""
    done = blindcal("audit", "none.csv", "--model", "m", "--set", given)
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("audit", "--max-cost"),
        ("audit", "--prices"),
        ("audit", "--queries"),
        ("plan", "--half-width"),
        ("threshold", "--cost-fp"),
    ],
)
def test_what_is_no_number_limits_nothing(command: str, option: str, value: str, tmp_path: Path) -> None:
    """A price, a limit or a goal that is not a number is refused before anything is read or asked."""
    done = blindcal(command, tmp_path / "none", option, value)
    assert done.exit_code == 2
    assert f"'{option}'" in done.output


def test_the_parts_are_on_the_console(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A result by a field prints one line per part and whether they differ; of many parts the largest."""
    result = replace(made_up(), by="topic\x1b", parts_pvalue=0.4)
    print_result(result, tmp_path)
    shown = capsys.readouterr().out
    assert "parts      by topic\\x1b; their differences may be chance (p-value 0.4)" in shown
    assert "law" in shown
    assert "60 items  ECE 0.200 (95%: 0.100 to 0.300)" in shown
    many = tuple(part(f"part {k}", around(0.1), 100 + k) for k in range(30))
    print_result(replace(result, parts=many, parts_pvalue=0.001), tmp_path)
    shown = capsys.readouterr().out
    assert "the 12 largest of 30; they differ by more than chance (p-value 0.001)" in shown
    assert "part 29" in shown
    assert "part 3 " not in shown


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("color", [True, False])
def test_long_fields_are_wrapped_on_a_terminal_and_not_in_a_pipe(color: bool) -> None:
    """A terminal wraps and colours a long warning, unless NO_COLOR is set; in a pipe it is one line."""
    code = "from blindcal.cli.console import print_field; print_field('WARNING', 'word ' * 30)"
    env = {**os.environ, "COLUMNS": "60", **({} if color else {"NO_COLOR": "1"})}
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert (piped.stdout.count("\n"), piped.stdout.count("\x1b")) == (1, 0)
    import pty  # not there on Windows

    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, env=env)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    assert ("\x1b[33m" in shown) == color
    lines = click.unstyle(shown).splitlines()
    assert len(lines) > 2
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith(" " * 11 + "word") for line in lines[1:])


def test_every_flag_in_an_error_exists() -> None:
    """Options that errors of the library name are options of the command line, by the names it prints."""
    source = ROOT / "src" / "blindcal"
    named = set()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "options" and isinstance(node.value, ast.Dict):
                named |= {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
    assert {"out", "api_key_env", "template"} <= named
    flags = {command_line_option(str(name), ...).split()[0] for name in named}
    assert flags <= set().union(*map(flags_of, COMMANDS))


def test_a_mistyped_command_is_answered_with_the_right_one() -> None:
    """A typo is met with what was probably meant, and with nothing where that cannot be guessed."""
    assert "No such command 'adit'. Did you mean 'audit'?" in blindcal("adit").output
    assert "Did you mean" not in blindcal("xyzzy").output


def test_a_missing_run_is_answered_with_those_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong folder is answered with the existing runs; where there is none, with how one is made."""
    monkeypatch.chdir(tmp_path)
    for command in ("status", "report", "threshold"):
        assert "no such run; 'blindcal audit' creates one" in str(blindcal(command, "runs/m").exception)
    (tmp_path / "runs" / "items-m").mkdir(parents=True)
    (tmp_path / "runs" / "items-m" / "run.sqlite").touch()
    asked: tuple[tuple[object, ...], ...] = (("status", "m"), ("compare", "m", "n"), ("check", "m"))
    for arguments in asked:
        assert f"m: no such run; existing runs: {Path('runs/items-m')}" in str(blindcal(*arguments).exception)


def test_only_other_machines_want_keys() -> None:
    """A key is missed over https on another machine, and needed where nothing is answered without one."""
    asked = Address("https://api.openai.com/v1", "m")
    assert asked.keyless_host({}) == "api.openai.com"
    with pytest.raises(InputError, match=r"api.openai.com wants an API key"):
        asked.check_key({})
    assert asked.keyless_host({"OPENAI_API_KEY": "sk"}) is None
    asked.check_key({"OPENAI_API_KEY": "sk"})
    own = replace(asked, base_url="https://models.example/v1")
    assert own.keyless_host({}) == "models.example"
    own.check_key({})
    assert replace(asked, base_url="https://localhost:8000/v1").keyless_host({}) is None
    assert replace(asked, base_url="http://10.0.0.7/v1").keyless_host({}) is None


def test_the_bar_and_lines_of_text_do_not_run_into_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    """The probe has a bar of its own; text stands on its own line; only the finished bar of the run stays."""

    def at(done: int, total: int, *, probing: bool = False) -> Progress:
        usage = Usage(queries=done, attempts=done)
        return Progress(done=done, total=total, usage=usage, cost=None, concurrency=8, probing=probing)

    with ProgressBar(mininterval=0, ncols=100) as bar:
        print_line = bar.wrap_print(lambda text: print(text, file=sys.stderr))
        print_line("probing")
        bar(at(80, 90, probing=True))
        bar(at(200, 500))
        print_line("200 of 500")
        bar(at(500, 500))
        print_line("estimating")
    shown = capsys.readouterr().err
    assert "probing, about 90: 80" in shown  # a probe ends where it ends
    lines = [line.split("\r")[-1].rstrip() for line in shown.split("\n")]
    assert [lines[0], *lines[-2:]] == ["probing", "estimating", ""]
    assert "200 of 500" in lines
    assert "500/500" in lines[-3]
