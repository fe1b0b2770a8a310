"""Real servers on this machine, installed, probed, audited and scored.

    python bench/servers.py [--n 200] [--only vLLM]
    python bench/servers.py --decisions [--n 200]

Each server gets an environment of its own in the folder .servers, and serves the embedded model: llama.cpp,
vLLM on the CPU, LiteLLM's proxy in front of it, and transformers serve. The oracle is llama.cpp's own
logprobs, and for the others, which serve unpacked weights, those of transformers. What a server accepts is
found with bare requests, without blindcal. Finished runs are kept: the same command goes on, and --only
measures one server again. With --decisions, the decision APIs of llama.cpp and LiteLLM are audited instead.
"""

from __future__ import annotations

from record import ROOT, Cell, parser, record, table

import asyncio
import csv
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.special import expit

from blindcal.endpoints.address import DECISION_APIS
from blindcal.endpoints.tokens import hugging_face
from blindcal.methods import METHODS
from hidden import score
from server_setup import (
    CACHE,
    LITELLM_DECIDING,
    LLAMA_DECIDING,
    MODEL,
    RANDOM,
    SERVERS,
    VLLM,
    VLLM_DECIDING,
    Server,
    made_key,
    started,
    status,
    with_upstream,
)

TRIED = ("auto", "logprobs", "latent", "temperature", "repeated")
"""Methods to audit with; those that this version does not have are skipped."""
UNFIT = 4  # exit status of an audit that refuses the endpoint
CONCURRENCY = "4"
AUDITS = (
    "server {} | method {} | queries {:,} | invalid {:.0%} | estimate {:.4f} | "
    "95% interval {:.4f} to {:.4f} | oracle {:.4f} | queries/s {:.1f} | outcome {}"
)


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


def blindcal(*arguments: str, fine: int = 0) -> tuple[int, str, str]:
    """The exit status and both outputs of a command as a user runs it; raises if it failed."""
    command = [sys.executable, "-m", "blindcal", *arguments]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode not in (0, fine):
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return done.returncode, done.stdout, done.stderr


@dataclass(frozen=True, slots=True)
class Bench:
    """The questions, and the folder where scores and runs are kept."""

    items: Path
    folder: Path

    def address(self, server: Server) -> list[str]:
        """The options that name a server."""
        key = ["--api-key-env", server.key_variable] if server.key_variable else []
        return ["--base-url", server.base_url, "--model", server.model, "--set", "timeout=300", *key]

    def scores(self, server: Server) -> Path:
        """The file with a server's oracle."""
        return self.folder / ("scores.csv" if server.model == MODEL else f"{server.slug}-scores.csv")

    def score(self, server: Server) -> None:
        """Read a server's oracle, once."""
        out = self.scores(server)
        if server.model == MODEL:
            blindcal("score", str(self.items), "--model", str(CACHE / MODEL), "--out", str(out))
        elif not out.exists():
            score(self.items, server.base_url, server.model, out)

    def audit(self, server: Server, method: str) -> tuple[int, str, str]:
        """Audit; a server that tells no token ids needs a tokenizer, except for the method auto."""
        ids = [] if server.tells_ids or method == "auto" else ["--set", f"tokenizer={CACHE / MODEL}"]
        return blindcal(
            *("audit", str(self.items), *self.address(server), "--method", method, *ids),
            *("--out", str(self.folder / f"{server.slug}-{method}"), "--concurrency", CONCURRENCY),
            *("--oracle", str(self.scores(server)), "--json"),
            fine=UNFIT,
        )


def audited(bench: Bench, server: Server) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """The result of an audit by each method, or why it is refused; what auto chose is not repeated."""
    chosen = ""
    for method in TRIED:
        if method == chosen or (method != "auto" and method not in METHODS):
            continue
        code, out, err = bench.audit(server, method)
        print(f"{server.name}, {method}: {'refused' if code else 'audited'}", flush=True)
        result = json.loads(out) if not code else None
        chosen = result["method"] if result and method == "auto" else chosen
        yield method, err.strip().splitlines()[-1] if result is None else result


# Decision APIs


WORDING = "Answer Yes or No."
AS_VLLM_ASKS = "{prompt}\n\nQuestion: " + WORDING + "\nyes\nno\nAnswer with yes or no only."


def decided(bench: Bench) -> Iterator[tuple[str, str, dict[str, Any] | str]]:
    """The audits of decision APIs, by server, form and method.

    The oracle is the logprobs of the same prompts: those of llama.cpp, and of vLLM's weights.
    """
    for server in (LLAMA_DECIDING, LITELLM_DECIDING, VLLM_DECIDING, VLLM):
        server.install()
    with started((LLAMA_DECIDING, LITELLM_DECIDING)):
        prompts = ["--template", f"{{prompt}}\n{WORDING}", "--set", "semantics=pair"]
        logprobs = bench.folder / "decisions-logprobs"
        named = [str(bench.items), *bench.address(LLAMA_DECIDING)]
        blindcal("audit", *named, *prompts, "--method", "logprobs", "--out", str(logprobs))
        oracle = _oracle(logprobs / "answers.csv", bench.folder / "decisions-scores.csv", "low")
        yield _decided(bench, LLAMA_DECIDING, "systemone", oracle)  # it has no other
        for form in DECISION_APIS:
            yield _decided(bench, LITELLM_DECIDING, form, oracle)
    with started((VLLM_DECIDING,)):
        scores = bench.folder / "random-logprobs.csv"
        prompts = ["--template", AS_VLLM_ASKS, "--set", "positive=yes", "--set", "negative=no"]
        blindcal("score", str(bench.items), "--model", str(CACHE / RANDOM), *prompts, "--out", str(scores))
        oracle = _oracle(scores, bench.folder / "random-scores.csv", "yes|", "no|")
        yield _decided(bench, VLLM_DECIDING, "systemone", oracle)
    with started((VLLM,)):
        bench.score(VLLM)
        code, out, err = bench.audit(VLLM, "auto")
        yield f"{VLLM.version()}, {MODEL}", "auto", err if code else json.loads(out)


def _oracle(found: Path, out: Path, *columns: str) -> Path:
    """Write a score file from log-odds, or the logprobs of two tokens; their columns begin like this."""
    with found.open(newline="") as file:
        rows = list(csv.DictReader(file))
    own = [next(name for name in rows[0] if name.startswith(column)) for column in columns]
    lines = ["id,label,p"]
    for row in rows:
        first, *other = (float(row[name]) for name in own)
        lines.append(f"{row['id']},{row['label']},{expit(first - sum(other))}")
    out.write_text("\n".join(lines))
    return out


def _decided(bench: Bench, server: Server, form: str, oracle: Path) -> tuple[str, str, dict[str, Any] | str]:
    code, out, err = blindcal(
        *("audit", str(bench.items), *bench.address(server), "--api", form, "--json"),
        *("--set", f"instructions={WORDING}", "--oracle", str(oracle), "--concurrency", CONCURRENCY),
        *("--out", str(bench.folder / f"{server.slug}-{form}")),
        fine=UNFIT,
    )
    print(f"{server.name}, {form}: {'refused' if code else 'audited'}", flush=True)
    model = f", {RANDOM}" if server.model == RANDOM else ""
    found = err.strip().splitlines()[-1] if code else json.loads(out)
    return f"{server.version()}{model}, {form}", "decisions", found


# Tables


def measure(server: Server, bench: Bench) -> dict[str, Any]:
    """Everything about one server, as JSON holds it."""
    for each in with_upstream(server):
        each.install()
    with started(with_upstream(server)):
        fields = accepted(server)
        print(f"{server.name}: {fields}", flush=True)
        bench.score(server)
        return {"version": server.version(), "accepted": fields, "audits": dict(audited(bench, server))}


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
    return {
        "accepts": table(dict.fromkeys(("server", "version", *fields), "{}"), accepts),
        "audits": table(AUDITS, audits),
    }


def main() -> None:
    """Measure the servers that are chosen, and record the tables of all that were."""
    options = parser(__doc__)
    options.add_argument("--n", type=int, default=200, help="number of built-in questions")
    options.add_argument(
        "--only", action="append", choices=SERVERS, help="measure this server; may be repeated"
    )
    options.add_argument("--decisions", action="store_true", help="measure decision APIs")
    options.add_argument("--fresh", action="store_true", help="forget the runs and scores of earlier calls")
    arguments = options.parse_args()
    folder = CACHE / f"runs-{arguments.n}"
    if arguments.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(folder / "builtin.jsonl", folder)
    blindcal("items", "builtin", "--n", str(arguments.n), "--out", str(bench.items))
    if arguments.decisions:
        rows = [audit_row(*each) for each in decided(bench)]
        record("servers-decisions", {"audits": table(AUDITS, rows)}, arguments, repeats=1, seeds="seed 0")
        return
    for name in arguments.only or SERVERS:
        found = measure(SERVERS[name], bench)
        (folder / f"{SERVERS[name].slug}.json").write_text(json.dumps(found, indent=1))
    files = {name: folder / f"{server.slug}.json" for name, server in SERVERS.items()}
    known = {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    record("servers", tables(known), arguments, repeats=1, seeds="seed 0")


if __name__ == "__main__":
    main()
