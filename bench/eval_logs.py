"""Run the examples of docs/inspect.md, docs/lm-eval.md and docs/self-check.md, and write their output there.

    python bench/eval_logs.py [inspect] [lm-eval] [self-check]

The task is the one on the page. The other tool asks the embedded model and writes its log, and the audit of
that log is printed as a user sees it. Both tools must be installed.
"""

from __future__ import annotations

from record import ROOT

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from blindcal.endpoints.local_model import Served, serve

BASE_URL = "http://127.0.0.1:8080/v1"  # of the server on the pages
#: Which page a tool has, the file of its task, and the kind of block that this is on the page.
PAGES = {
    "inspect": ("sums.py", "python"),
    "lm-eval": ("claims.yaml", "yaml"),
    "self-check": ("words.py", "python"),
}
PROGRAMS = {"inspect": "inspect_ai", "lm_eval": "lm_eval", "blindcal": "blindcal"}


def main() -> None:
    """Run the examples of the pages that are named, or of all."""
    with serve() as served:
        for name in sys.argv[1:] or PAGES:
            page = ROOT / "docs" / f"{name}.md"
            with tempfile.TemporaryDirectory() as folder:
                output = run_page(page.read_text(), *PAGES[name], served, Path(folder))
            page.write_text(with_output(page.read_text(), name, output))


def with_output(page: str, name: str, output: str) -> str:
    """A page with what its example prints."""
    pattern = re.compile(rf"(<!-- transcript: {name} -->\n```text\n).*?(```\n)", re.S)
    return pattern.sub(lambda found: found[1] + output + found[2], page)


def run_page(page: str, task: str, kind: str, served: Served, folder: Path) -> str:
    """Run the commands of a page's first shell block; what the last one prints on standard output."""
    (folder / task).write_text(block(page, kind))
    output = ""
    for line in re.sub(r"\\\n\s*", " ", block(page, "sh")).splitlines():
        words = shlex.split(line.replace(BASE_URL, served.base_url))
        if words[0] in ("pip", "export") or words[:2] == ["blindcal", "serve"]:
            continue
        words = [name for word in words for name in expanded(word, folder)]
        print("$", shlex.join(words), flush=True)
        output = run([sys.executable, "-m", PROGRAMS[words[0]], *words[1:]], served, folder)
        print(output, flush=True)
    return output


def block(page: str, kind: str) -> str:
    """The first fenced block of a kind."""
    found = re.search(rf"^```{kind}\n(.*?)^```$", page, re.M | re.S)
    assert found is not None, f"no block of {kind}"
    return found[1]


def expanded(word: str, folder: Path) -> list[str]:
    """A word of a command, with its patterns replaced by names of files as a shell does."""
    return (
        sorted(str(path.relative_to(folder)) for path in folder.glob(word)) or [word]
        if "*" in word
        else [word]
    )


def run(command: list[str], served: Served, folder: Path) -> str:
    """The standard output of a command."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "INSPECT_DISPLAY": "none"}
    keys = {"SERVED_BASE_URL": served.base_url, "SERVED_API_KEY": "none", "OPENAI_API_KEY": "none"}
    environ = {**os.environ, **offline, **keys}
    return subprocess.run(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


if __name__ == "__main__":
    main()
