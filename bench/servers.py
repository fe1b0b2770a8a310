"""Real servers on this machine, installed, probed, audited, scored, and killed in mid-run.

    python bench/servers.py [--n 200] [--only vLLM]

Each server gets an environment of its own in the folder .servers, and serves the embedded model: llama.cpp,
vLLM on the CPU, LiteLLM's proxy in front of it, and transformers serve. The oracle is the server's own
logprobs or, where it shows none, those of vLLM, which computes with the same weights. What a server accepts
is found with bare requests, without blindcal. One audit per server is interrupted: the server is killed
(SIGKILL) and started again, and a proxy in between counts the answers. Finished runs are kept: the same
command goes on, and --only measures one server again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from blindcal.endpoints.vocabulary import hugging_face
from blindcal.items.score_files import read_scores
from blindcal.methods import METHODS
from record import ROOT, Cell, parser, record, table
from server_setup import CACHE, MODEL, SERVERS, Running, Server, made_key, started, status, with_upstream

TRIED = ("auto", "logprobs", "latent", "temperature", "repeated")
"""Methods to audit with; those that this version does not have are skipped."""
BETWEEN = 18490  # port of the proxy that counts
UNFIT = 4  # exit status of an audit that refuses the endpoint
CONCURRENCY = "4"


# What a server accepts


@dataclass(frozen=True, slots=True)
class Asking:
    """Bare requests to a server about one question."""

    server: Server

    def __call__(self, **fields: Any) -> tuple[int, Any]:
        """The status and content of the response to a request with these fields."""
        question = [{"role": "user", "content": "Is fire hot? Answer Yes or No."}]
        body = {
            "model": self.server.model,
            "messages": question,
            "max_tokens": 1,
            "temperature": 0.0,
            **fields,
        }
        sent = {name: value for name, value in body.items() if value is not None}
        return status(f"{self.server.base_url}/chat/completions", sent, key=made_key(self.server))

    def texts(self, **fields: Any) -> list[str]:
        """The answers in the response; none if the request is refused."""
        code, content = self(**fields)
        return [choice["message"]["content"] or "" for choice in content["choices"]] if code == 200 else []


def accepted(server: Server) -> dict[str, str]:
    """What a server accepts, by field."""
    ask = Asking(server)
    yes, no = asyncio.run(_ids())
    found = {"token ids": _token_ids(server), "logprobs": _logprobs(ask)}
    forced = [ask.texts(logit_bias={str(token): 100.0}) for token in (yes, no)]
    found["logit_bias"] = _effect(all(forced), forced == [["Yes"], ["No"]])
    drawn = [ask.texts(temperature=2.0, seed=k) for k in range(12)]
    found["temperature"] = _effect(all(drawn), len({tuple(texts) for texts in drawn}) > 1)
    several = ask.texts(n=3, temperature=1.0)
    found["n"] = _effect(bool(several), len(several) == 3)
    offs = {"min_p": 0, "top_k": -1, "repetition_penalty": 1.0}
    found["min_p, top_k, repetition_penalty"] = (
        "accepted" if ask.texts(temperature=1.0, **offs) else "refused"
    )
    only = [ask.texts(allowed_token_ids=[yes, no], temperature=2.0, seed=k) for k in range(12)]
    words = [["Yes"], ["No"]]
    inside = all(texts in words for texts in only) and not all(texts in words for texts in drawn)
    found["allowed_token_ids"] = _effect(all(only), inside)
    short = ask(max_tokens=None, max_completion_tokens=1)[1]
    tokens = short["usage"]["completion_tokens"] if isinstance(short, dict) and "usage" in short else 0
    found["max_completion_tokens"] = _effect(bool(tokens), tokens == 1)
    return found


async def _ids() -> tuple[int, int]:
    encode = hugging_face(str(CACHE / MODEL))
    return (await encode("Yes"))[0], (await encode("No"))[0]


def _token_ids(server: Server) -> str:
    url = server.base_url.removesuffix("/v1") + "/tokenize"
    for body in ({"content": "Yes"}, {"model": server.model, "prompt": "Yes", "add_special_tokens": False}):
        code, content = status(url, body, key=made_key(server))
        if code == 200 and content.get("tokens"):
            return "/tokenize"
    return "not told"


def _logprobs(ask: Asking) -> str:
    code = 0
    for top in (5000, 20, 5):
        code, content = ask(logprobs=True, top_logprobs=top)
        if code == 200:
            shown = (content["choices"][0].get("logprobs") or {}).get("content")
            return f"{len(shown[0]['top_logprobs']):,}" if shown else "ignored"
    return "refused"


def _effect(answered: bool, acts: bool) -> str:
    return "acts" if answered and acts else "ignored" if answered else "refused"


# Audits


def blindcal(*arguments: str) -> subprocess.Popen[str]:
    """Start a command as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", "blindcal", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(command: subprocess.Popen[str], *fine: int) -> tuple[int, str, str]:
    """The exit status and both outputs of a command; raises if it failed."""
    out, err = command.communicate()
    if command.returncode not in (0, *fine):
        raise RuntimeError(f"{' '.join(map(str, command.args))}\n{err}")  # type: ignore[arg-type]
    return command.returncode, out, err


@dataclass(frozen=True, slots=True)
class Bench:
    """The questions, and the folder where scores and runs are kept."""

    items: Path
    folder: Path

    def address(self, server: Server, url: str = "") -> list[str]:
        """The options that name a server."""
        key = ["--api-key-env", server.key_variable] if server.key_variable else []
        return ["--base-url", url or server.base_url, "--model", server.model, "--set", "timeout=300", *key]

    def scores(self, server: Server) -> Path:
        """The file with a server's oracle."""
        return self.folder / f"{SERVERS[server.oracle or server.name].slug}-scores.csv"

    def is_scored(self, server: Server) -> bool:
        """Whether a server's oracle is complete."""
        path = self.scores(server)
        wanted = len(self.items.read_text().splitlines())
        return path.is_file() and len(read_scores(path).ids) == wanted

    def score(self, server: Server) -> None:
        """Score the items with a server that shows logprobs."""
        where = self.address(server)
        finished(blindcal("score", str(self.items), *where, "--out", str(self.scores(server))))

    def audit(self, server: Server, method: str, *, url: str = "", run: str = "") -> subprocess.Popen[str]:
        """Start an audit; a server that tells no token ids needs a tokenizer, except for the method auto."""
        ids = [] if server.tells_ids or method == "auto" else ["--set", f"tokenizer={CACHE / MODEL}"]
        return blindcal(
            *("audit", str(self.items), *self.address(server, url), "--method", method, *ids),
            *("--out", str(self.folder / f"{server.slug}-{run or method}"), "--concurrency", CONCURRENCY),
            *("--oracle", str(self.scores(server)), "--json"),
        )


def audited(bench: Bench, server: Server) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """The result of an audit by each method, or why it is refused; what auto chose is not repeated."""
    chosen = ""
    for method in TRIED:
        if method == chosen or (method != "auto" and method not in METHODS):
            continue
        code, out, err = finished(bench.audit(server, method), UNFIT)
        print(f"{server.name}, {method}: {'refused' if code else 'audited'}", flush=True)
        result = json.loads(out) if not code else None
        chosen = result["method"] if result and method == "auto" else chosen
        yield method, err.strip().splitlines()[-1] if result is None else result


# One server that is killed


class CountingProxy:
    """Passes requests on to a server, and counts the answers to each that were passed back.

    A server that does not answer looks as it does without the proxy: the connection breaks.
    """

    def __init__(self, target: str) -> None:
        self.target = target.removesuffix("/v1")
        self.answered: Counter[str] = Counter()
        self._waiting: tuple[int, threading.Event] | None = None

    def reached(self, count: int) -> threading.Event:
        """An event that is set once so many answers were passed back."""
        event = threading.Event()
        self._waiting = count, event
        return event

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            async with self._client.request(
                request.method, self.target + request.path_qs, data=body, headers=_kept(request.headers)
            ) as found:
                response = web.Response(
                    status=found.status, body=await found.read(), headers=_kept(found.headers)
                )
        except (aiohttp.ClientError, OSError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        if response.status == 200 and request.path.endswith("/chat/completions"):
            self.answered[hashlib.sha256(body).hexdigest()] += 1
            if self._waiting is not None and self.answered.total() >= self._waiting[0]:
                self._waiting[1].set()
        return response

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve during the block; yields the base URL."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            runner = asyncio.run_coroutine_threadsafe(self._open(), loop).result()
            yield f"http://127.0.0.1:{BETWEEN}/v1"
            asyncio.run_coroutine_threadsafe(self._close(runner), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _open(self) -> web.AppRunner:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", BETWEEN).start()
        return runner

    async def _close(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await self._client.close()


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in ("Content-Type", "Authorization") if name in headers}


def killed(bench: Bench, running: Running, method: str, whole: dict[str, Any]) -> list[Cell]:
    """Audit while the server is killed and started again; ``whole`` is the result of an audit left alone."""
    server = running.server
    proxy = CountingProxy(server.base_url)
    shutil.rmtree(bench.folder / f"{server.slug}-killed", ignore_errors=True)  # of an earlier call
    total, items = whole["spend"]["queries"], whole["counts"]["items"]
    with proxy.serving() as url:
        moment = proxy.reached(total - items // 2)
        audit = bench.audit(server, method, url=url, run="killed")
        try:
            if not moment.wait(1800):
                raise RuntimeError(f"the audit of {server.name} gave no answers")
            before = proxy.answered.total()
            running.kill()
            again = server.start()
            _, out, _ = finished(audit)
        finally:
            audit.kill()
        again.kill()
    result = json.loads(out)
    same = "yes" if result["ece"] == whole["ece"] and result["counts"] == whole["counts"] else "no"
    if METHODS[result["method"]].sampled:
        same = "drawn anew"
    lost = result["counts"]["unanswered"]
    twice = proxy.answered.total() - result["spend"]["queries"]
    return [server.name, result["method"], items, total, before, lost, twice, same]


# Tables


def measure(server: Server, bench: Bench, *, kill: bool) -> dict[str, Any]:
    """Everything about one server, as JSON holds it."""
    for one in (*with_upstream(server), *([SERVERS[server.oracle]] if server.oracle else [])):
        one.install()
    if server.oracle and not bench.is_scored(server):
        with started([SERVERS[server.oracle]]) as running:
            bench.score(running.server)
    with started(with_upstream(server)) as running:
        found: dict[str, Any] = {"version": server.version(), "accepted": accepted(server)}
        print(f"{server.name}: {found['accepted']}", flush=True)
        if not server.oracle:
            bench.score(server)
        found["audits"] = dict(audited(bench, server))
        audits = ((method, one) for method, one in found["audits"].items() if not isinstance(one, str))
        whole = next(audits, None)
        found["kill"] = killed(bench, running, *whole) if kill and whole is not None else None
    return found


def audit_row(name: str, method: str, result: dict[str, Any] | str) -> list[Cell]:
    """One row of the table of audits."""
    if isinstance(result, str):
        reason = re.split(r": (?:use )?--", result.removeprefix("error: "))[0]  # without what to do about it
        return [name, method, *[None] * 6, f"refused: {reason}"]
    ece, oracle, spend = result["ece"], result["oracle"]["ece"], result["spend"]
    inside = "oracle inside" if ece["low"] <= oracle <= ece["high"] else "oracle outside"
    asked = f"auto: {result['method']}" if method == "auto" else method
    between = (ece["low"], ece["high"])
    rate = spend["queries"] / result["seconds"] if result["seconds"] else None
    invalid = result["counts"]["invalid"] / max(1, spend["queries"] - spend["probe_queries"])
    return [name, asked, spend["queries"], invalid, ece["value"], between, oracle, rate, inside]


def tables(found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The tables of all servers that were measured."""
    fields = list(next(iter(found.values()))["accepted"])
    accepts = [
        [name, one["version"], *(one["accepted"][field] for field in fields)] for name, one in found.items()
    ]
    audits = [audit_row(name, *each) for name, one in found.items() for each in one["audits"].items()]
    kills = [one["kill"] for one in found.values() if one["kill"]]
    return {
        "accepts": table(dict.fromkeys(("server", "version", *fields), "{}"), accepts),
        "audits": table(
            {
                "server": "{}",
                "method": "{}",
                "queries": "{:,}",
                "invalid": "{:.0%}",
                "estimate": "{:.4f}",
                "95% interval": "{:.4f} to {:.4f}",
                "oracle": "{:.4f}",
                "queries/s": "{:.1f}",
                "outcome": "{}",
            },
            audits,
        ),
        "kills": table(
            {
                "server": "{}",
                "method": "{}",
                "items": "{:,}",
                "queries": "{:,}",
                "killed after": "{:,}",
                "lost": "{}",
                "asked twice": "{}",
                "result as if left alone": "{}",
            },
            kills,
        ),
    }


def main() -> None:
    """Measure the servers that are chosen, and record the tables of all that were."""
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=200, help="number of built-in questions")
    options.add_argument(
        "--only", action="append", choices=SERVERS, help="measure this server; may be repeated"
    )
    options.add_argument("--fresh", action="store_true", help="forget the runs and scores of earlier calls")
    options.add_argument("--no-kill", action="store_true", help="kill no server")
    arguments = options.parse_args()
    folder = CACHE / f"runs-{arguments.n}"
    if arguments.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder / "builtin.jsonl", folder)
    finished(blindcal("items", "builtin", "--n", str(arguments.n), "--out", str(bench.items)))
    for name in arguments.only or SERVERS:
        found = measure(SERVERS[name], bench, kill=not arguments.no_kill)
        (folder / f"{SERVERS[name].slug}.json").write_text(json.dumps(found, indent=1))
    files = {name: folder / f"{server.slug}.json" for name, server in SERVERS.items()}
    known = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    record("servers", tables(known), folder=arguments.results, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
