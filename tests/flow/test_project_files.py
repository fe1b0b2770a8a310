"""Files that other programs read, from workflows to the image, and the examples of CONTRIBUTING.md."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from blindcal.methods import METHODS, Method
from doc_pages import parse
from paths import ROOT

FORMS = (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")
SCHEMAS = {
    "github-actions": ["action.yml"],
    "github-workflows": [".github/workflows/test.yml", ".github/workflows/release.yml"],
    "github-issue-forms": sorted(str(path) for path in FORMS if path.name != "config.yml"),
    "github-issue-config": [".github/ISSUE_TEMPLATE/config.yml"],
    "dependabot": [".github/dependabot.yml"],
    "citation-file-format": ["CITATION.cff"],
    "compose-spec": ["compose.yaml"],
}


def validate(schema: str, *files: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    command += ["--default-filetype", "yaml", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def snippets() -> list[Any]:
    """The YAML of docs/ci.md."""
    page = (ROOT / "docs" / "ci.md").read_text()
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_are_what_their_readers_expect(schema: str) -> None:
    """Each file is valid by the published schema of the program that reads it."""
    validate(schema, *SCHEMAS[schema])


def test_snippets_of_the_page_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow and the GitLab job of docs/ci.md can be copied: inputs and options exist."""
    workflow, gitlab = snippets()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    whole = tmp_path / "workflow.yml"
    whole.write_text(yaml.safe_dump({"on": "push", **workflow}))
    validate("github-workflows", str(whole))
    job = tmp_path / "gitlab.yml"
    job.write_text(yaml.safe_dump(gitlab))
    validate("gitlab-ci", str(job))
    given = workflow["jobs"]["calibration"]["steps"][-1]["with"]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    assert set(given) <= set(inputs)
    assert {name for name, one in inputs.items() if one.get("required")} <= set(given)
    parse(["audit", given["items"], "--model", given["model"], *shlex.split(given["audit-options"])])
    for line in gitlab["calibration"]["script"]:
        if line.startswith("blindcal "):
            parse(shlex.split(line)[1:])


def test_the_page_lists_every_input() -> None:
    """The table of docs/ci.md and action.yml name the same inputs."""
    page = (ROOT / "docs" / "ci.md").read_text()
    table = page.partition("| input |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`([a-z-]+)`", row.split("|")[1])}
    assert named == set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])


def dockerfile() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with their arguments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def test_the_image_is_built_from_files_that_it_gets() -> None:
    """What the Dockerfile copies exists and is not left out of the build context; the user is not root."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [name for word, rest in dockerfile() if word == "COPY" for name in rest.split()[:-1]]
    assert set(copied) == set(kept)
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)
    last = dict(dockerfile())
    assert last["USER"] not in ("root", "0")
    assert last["ENTRYPOINT"] == '["blindcal"]'


def test_what_runs_elsewhere_is_pinned_by_digest() -> None:
    """Actions of others and the base image are named by what they contain, which no tag or branch is."""
    files = ["action.yml", *(f".github/workflows/{name}.yml" for name in ("test", "release"))]
    text = "".join((ROOT / file).read_text() for file in files)
    used = [name for name in re.findall(r"uses: (.*)", text) if not name.startswith("./")]
    assert used
    assert [name for name in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", name)] == []
    images = [rest for word, rest in dockerfile() if word == "FROM"]
    assert [
        image
        for image in images
        if not re.match(r"python:3\.13-slim@sha256:[0-9a-f]{64}( AS build)?$", image)
    ] == []


def test_the_compose_example_is_a_command_of_ours() -> None:
    """The audit in compose.yaml asks for the model that the server is told to serve, at its address."""
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    command = services["blindcal"]["command"]
    parse(list(command))
    server = services["model"]["command"]
    assert command[command.index("--model") + 1] == server[server.index("--alias") + 1]
    assert services["blindcal"]["environment"]["OPENAI_BASE_URL"] == (
        f"http://model:{server[server.index('--port') + 1]}/v1"
    )


# CONTRIBUTING.md

CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_a_new_method_and_a_new_endpoint_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's Python, from its first block to its last, simulates a new method and audits a function."""
    monkeypatch.chdir(tmp_path)
    registry = cast(dict[str, Method], METHODS)
    monkeypatch.setitem(registry, "even", registry["latent"])  # so that the page's own entry is undone
    names: dict[str, object] = {"__name__": "contributing"}
    for number, text in enumerate(
        re.findall(r"^```python\n(.*?)^```$", CONTRIBUTING.read_text(), re.M | re.S), 1
    ):
        exec(compile(text, f"CONTRIBUTING.md, block {number}", "exec", dont_inherit=True), names)
    assert "Simulation(even, 2,000 items, 3 audits, error 0.0" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").is_file()


def test_what_the_page_names_exists() -> None:
    """Files and make targets that the page names are there."""
    page = CONTRIBUTING.read_text()
    for name in re.findall(r"`((?:tests|bench|docs|\.github)/[\w./-]+)`", page):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(?!tests/|bench/|docs/)((?:[a-z_]+/)?[a-z_]+\.py|[a-z_]+/)`", page):
        assert (ROOT / "src" / "blindcal" / name).exists(), name
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"make ([a-z-]+)", page)) <= set(targets)
