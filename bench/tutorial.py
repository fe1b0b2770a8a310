"""Run the commands of docs/tutorial.md or another page, and write what they print below them.

    python bench/tutorial.py [PAGE] [--port 8080]

A block of commands that is followed by a block of text is shown with its output. The commands are run as they
stand, in a new folder, against the embedded model that `blindcal serve` serves. The report's picture goes to
docs/images/tutorial.png, and the model's logprobs to tests/data/tutorial_logits.csv.gz: from these,
tests/slow/test_doc_pages.py runs the same commands without the model. About fifteen minutes on two cores. Of
another page, such as docs/judges.md, only the output is written.
"""

from __future__ import annotations

from record import ROOT

import argparse
import csv
import gzip
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blindcal.endpoints.local_model import ServerSettings, serve
from hidden import score
from picture import photograph

PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = ROOT / "docs" / "images" / "tutorial.png"
LOGITS = ROOT / "tests" / "data" / "tutorial_logits.csv.gz"
QUESTIONS, REPORT = "reviews.csv", "runs/reviews/report.html"
#: Comments, and commands that whoever runs the page does: to install, to serve, and to say where.
NOT_RUN = ("#", "pip", "export", "blindcal pull", "blindcal serve")

TEMPLATE = re.compile(r'--template "([^"]*)"')
_STEP = re.compile(
    r"(?P<before>(?:<!-- exit (?P<status>\d+) -->\n)?```(?P<kind>sh|python)\n(?P<text>.*?)```\n)"
    r"(?P<shown>\n```text\n(?P<output>.*?)```\n)?",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Step:
    """A block of commands, and the output that the page shows for it; ``None`` if it shows none."""

    kind: str
    text: str
    status: int
    output: str | None

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued lines joined."""
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines()
        return [line for line in lines if line.strip() and not line.startswith(NOT_RUN)]


def steps(page: str) -> Iterator[Step]:
    """The steps of a page."""
    for found in _STEP.finditer(page):
        yield Step(found["kind"], found["text"], int(found["status"] or 0), found["output"])


def run(step: Step, folder: Path, base_url: str) -> str:
    """Run a step as a user would, and return its standard output."""
    env = {**os.environ, "OPENAI_BASE_URL": base_url}
    commands = [shlex.join([sys.executable, "-c", step.text])] if step.kind == "python" else step.commands
    said = ""
    for place, command in enumerate(commands):
        words = shlex.split(command)
        if words[0] == "blindcal":
            words[:1] = [sys.executable, "-m", "blindcal"]
        done = subprocess.run(words, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=False)
        wanted = step.status if place == len(commands) - 1 else 0
        if done.returncode != wanted:
            raise SystemExit(f"{command}: ended with status {done.returncode}, not {wanted}")
        said += done.stdout
    return said


def main() -> None:
    """Run the page from top to bottom, and write it again."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("page", type=Path, nargs="?", default=PAGE)
    options.add_argument("--port", type=int, default=8080)
    chosen = options.parse_args()
    settings = ServerSettings(port=chosen.port)
    page, outputs = chosen.page.read_text(), []
    with tempfile.TemporaryDirectory() as folder, serve(settings=settings) as served:
        for step in steps(page):
            outputs.append(run(step, Path(folder), served.base_url))
            print(f"{step.text}\n{outputs[-1]}", flush=True)
        if chosen.page == PAGE:
            photograph(Path(folder, REPORT), PICTURE)
            (template,) = {text for step in steps(page) for text in TEMPLATE.findall(step.text)}
            scores, asked = Path(folder, "scores.csv"), template.replace("\\n", "\n")
            score(Path(folder, QUESTIONS), served.base_url, served.model, scores, asked)
            keep_logits(scores, LOGITS)
    left = iter(outputs)

    def shown(found: re.Match[str]) -> str:
        output = next(left)
        return found["before"] + (f"\n```text\n{output}```\n" if found["shown"] else "")

    chosen.page.write_text(_STEP.sub(shown, page))


def keep_logits(scores: Path, out: Path) -> None:
    """Write the logprobs of a score file as a recording: without probabilities, with lse and argmax."""
    with scores.open(newline="") as file:
        rows = list(csv.DictReader(file))
    tokens = [name for name in rows[0] if "|" in name]
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["id", "label", *tokens, "lse", "argmax"])
    for row in rows:
        first = max(tokens, key=lambda token: float(row[token]))
        writer.writerow(
            [row["id"], row["label"], *(row[token] for token in tokens), 0, first.rpartition("|")[2]]
        )
    out.write_bytes(gzip.compress(table.getvalue().encode(), mtime=0))


if __name__ == "__main__":
    main()
