"""The embedded model, for real: what it leaves behind, how it fails, and where its answers flip."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from blindcal.cli.serve import command as serve_command
from blindcal.endpoints import tokens
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.local_model import NAME, Served, ServerError, ServerSettings, serve
from blindcal.endpoints.query_format import DecisionQuestion, TokenQuestion
from blindcal.errors import InputError, MissingExtraError
from blindcal.records import Item, Message, Request, Targets
from blindcal.scoring.hf import Score
from blindcal.scoring.score_items import log_odds
from hidden import shown
from serving import model_or_skip

SMALL = ServerSettings(context=256, threads=1)
PROMPTS = ("Is fire hot? Answer:", "Fire is hot. Yes or no?\n")


@pytest.fixture(scope="module")
def model() -> Path:
    return model_or_skip()


@pytest.fixture(scope="module")
def served(model: Path) -> Iterator[Served]:
    with serve(model, SMALL) as served:
        yield served


def address(served: Served) -> Address:
    return Address(served.base_url, served.model, "completions")


def refuses(base_url: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(base_url.split(":")[2].split("/")[0]))) != 0


def test_leaves_nothing_behind(model: Path) -> None:
    """After a block, also one that fails, neither the process nor the port is there."""
    with contextlib.suppress(ZeroDivisionError), serve(model, SMALL) as served:
        assert served.alive
        assert not refuses(served.base_url)
        raise ZeroDivisionError
    assert not served.alive
    assert served.process.returncode == 0
    assert refuses(served.base_url)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waiting for a stranger's process needs pidfd_open")
def test_killed_parent_takes_the_server_with_it(model: Path) -> None:
    """A server whose parent is killed outright ends by itself."""
    code = """
        import sys, pathlib
        from blindcal.endpoints.local_model import *
        with serve(pathlib.Path(sys.argv[1]), ServerSettings(context=256, threads=1)) as served:
            print(served.process.pid, served.base_url, flush=True)
            sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pid, base_url = parent.stdout.readline().split()
        server = os.pidfd_open(int(pid))
        parent.kill()
    ended, _, _ = select.select([server], [], [], 20)
    os.close(server)
    assert ended
    assert refuses(base_url)


def test_port_taken(model: Path) -> None:
    """A port that another program holds is named, with what to do."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"port {port} cannot be used"),
            serve(model, ServerSettings(port=port)),
        ):
            pass


def test_no_whole_model(model: Path, tmp_path: Path) -> None:
    """A GGUF that ends in the middle is called incomplete; what is no GGUF never reaches the server."""
    part, text = tmp_path / "part.gguf", tmp_path / "model.gguf"
    with model.open("rb") as whole:
        part.write_bytes(whole.read(8_000_000))
    with pytest.raises(ServerError, match=r"cannot be loaded: .*incomplete"), serve(part, SMALL):
        pass
    text.write_text("hello")
    with pytest.raises(InputError, match="not a GGUF"), serve(text):
        pass


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without xllamacpp the error names the extra to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"blindcal\[local\]"), serve():
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits are enforced on Linux")
def test_out_of_memory(model: Path) -> None:
    """llama.cpp aborts when memory runs out; its parent lives on and says what to try."""
    code = """
        import resource, sys, pathlib
        from blindcal.endpoints.local_model import *
        resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
        try:
            with serve(pathlib.Path(sys.argv[1]), ServerSettings(threads=1)):
                pass
        except ServerError as error:
            print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "not enough memory" in done.stdout
    assert done.stderr == ""


def test_exact_repeats(served: Served) -> None:
    """The same question gives the same logprobs to the last bit, whatever was asked in between."""

    async def ask() -> list[object]:
        async with HttpEndpoint(address(served)) as endpoint:
            requests = [Request((Message("prompt", PROMPTS[k]),), top_logprobs=50) for k in (0, 1, 0, 0)]
            return [(await endpoint.ask(request)).logprobs for request in requests]

    first, _, again, once_more = asyncio.run(ask())
    assert first == again == once_more


async def flip(endpoint: HttpEndpoint, item: Item, targets: Targets) -> float:
    """Where the answer turns as the shift on the positive side grows; twenty-odd halvings of [-15, 15]."""
    low, high = -15.0, 15.0
    question = TokenQuestion(targets)
    while high - low > 2e-5:
        shift = (low + high) / 2
        reply = await endpoint.ask(question.request(item.messages, shift, 0.0))
        answer = question.parse(reply).answer
        assert answer in (0, 1)
        low, high = (low, shift) if answer else (shift, high)
    return (low + high) / 2


def test_flip_points(served: Served) -> None:
    """Answers flip at the logprob gap: of the pair, or of the largest on each side, never of the sums."""

    async def measure() -> tuple[Score, Targets, float, float]:
        async with HttpEndpoint(address(served)) as endpoint:
            encode = tokens.served_vocabulary(endpoint, served.model)
            positive, negative = await tokens.candidates("Yes", encode), await tokens.candidates("No", encode)
            item = Item("fire", 1, (Message("prompt", PROMPTS[0]),))
            every = Targets(positive, negative, "max")
            pair = Targets(positive[:1], negative[:1])
            return (
                await shown(endpoint, item, every),
                every,
                await flip(endpoint, item, pair),
                await flip(endpoint, item, every),
            )

    scored, every, pair_flip, max_flip = asyncio.run(measure())
    pair, largest, total = log_odds(every, scored.logprobs)
    assert pair_flip == pytest.approx(-pair, abs=1e-4)
    assert max_flip == pytest.approx(-largest, abs=1e-4)
    assert abs(max_flip + total) > 0.1
    assert scored.mass < 1


def start(*arguments: str, name: str, api: str = "") -> tuple[subprocess.Popen[str], str]:
    """Run ``blindcal serve`` and wait until it says what, where, and how to audit it."""
    command = [sys.executable, "-m", "blindcal", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    url = line.split(" at ")[1].split()[0]
    audited = f"audit it with --model {name} --base-url {url}{api}; Ctrl-C stops it"
    assert line == f"serving model '{name}' at {url} ({audited})\n"
    return process, url


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_serve_command(model: Path, ending: signal.Signals) -> None:
    """The command serves until Ctrl-C or a polite kill, and then says that it stopped."""
    process, base_url = start(str(model), "--threads", "1", "--context", "256", name=model.stem)
    with urllib.request.urlopen(f"{base_url}/models") as reply:
        assert json.load(reply)["data"][0]["id"] == model.stem
    process.send_signal(ending)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 0
    assert stderr == "stopped\n"
    assert refuses(base_url)


@pytest.mark.usefixtures("model")
def test_serve_command_decides() -> None:
    """The default model answers typed questions, each with different probabilities."""
    arguments = ("--decisions", "--threads", "1", "--context", "256")
    process, base_url = start(*arguments, name=Path(NAME).stem, api=" --api systemone")
    questions = (
        DecisionQuestion(("Yes", "No")),
        DecisionQuestion(("red", "green", "blue")),
        DecisionQuestion(("bad", "fair", "good"), graded=True),
    )

    async def ask(text: str) -> list[Mapping[str, float] | None]:
        about = (Message("user", text),)
        async with HttpEndpoint(Address(base_url, Path(NAME).stem, "systemone")) as endpoint:
            return [(await endpoint.ask(each.request(about, 0.0, 0.0))).probabilities for each in questions]

    try:
        shown = [asyncio.run(ask(text)) for text in ("Grass is green.", "Blood is red.")]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    for one, other in zip(*shown, strict=True):
        assert one
        assert one != other
        assert len(set(one.values())) == len(one)


def test_serve_command_replays(tmp_path: Path) -> None:
    """With scores and items no model is needed: the recording answers, and hides its logprobs."""
    (tmp_path / "scores.csv").write_text("id,label,p\na,1,0.9\nb,0,0.2\n")
    lines = ['{"id": "a", "prompt": "A?", "label": 1}', '{"id": "b", "prompt": "B?", "label": 0}']
    (tmp_path / "items.jsonl").write_text("\n".join(lines))
    files = ("--scores", str(tmp_path / "scores.csv"), "--items", str(tmp_path / "items.jsonl"))
    process, base_url = start(*files, "--template", "{prompt}\\n", name="scores")

    async def ask() -> list[str]:
        async with HttpEndpoint(Address(base_url, "scores")) as endpoint:
            return [(await endpoint.ask(Request((Message("user", text),)))).text for text in ("A?\n", "B?\n")]

    try:
        assert asyncio.run(ask()) == ["Yes", "No"]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scores", "FILE"], "needs --scores and --items together"),
        (["--scores", "FILE", "--items", "FILE", "model.gguf"], "no MODEL"),
        (["--decisions", "model.gguf"], "--decisions serves the default model"),
        (["--jitter", "1"], "--jitter is for a replay"),
    ],
)
def test_serve_command_mistakes(tmp_path: Path, arguments: list[str], message: str) -> None:
    """Options that do not go together are refused before anything starts."""
    file = tmp_path / "file.csv"
    file.write_text("id,label,p\n")
    result = CliRunner().invoke(serve_command, [str(file) if a == "FILE" else a for a in arguments])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
