"""The GitHub Action: its shell steps run as GitHub's runner runs them, against a service that answers.

The runner's part is small: it puts inputs and outputs into the environment of a step, runs the step with
bash, and reads the files that the step writes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from blindcal.simulation.replay import running
from docs_world import MODELS, TEMPLATE, AnyPromptServer, write_questions
from paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs bash")

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ *(\S+) *\}\}")
FEW = "--set resamples=40 --quiet"


@dataclass
class Job:
    """A job on a runner: a folder to work in, one for temporary files, libraries, and the steps' outputs."""

    folder: Path
    temp: Path
    libraries: Path
    outputs: dict[str, str]

    def value(self, expression: str, inputs: dict[str, str]) -> str:
        """What an expression stands for; an unknown one is an error of the action."""
        first, *rest = expression.split(".")
        if first == "inputs":
            return inputs.get(rest[0], str(ACTION["inputs"][rest[0]].get("default", "")))
        assert first == "steps", expression
        return self.outputs.get(f"{rest[0]}.{rest[2]}", "")

    def run(self, name: str, **inputs: str) -> subprocess.CompletedProcess[str]:
        """Run the step with this id."""
        given = {key.replace("_", "-"): text for key, text in inputs.items()}
        (step,) = [one for one in STEPS if one.get("id") == name]
        env = {
            variable: EXPRESSION.sub(lambda found: self.value(found[1], given), text)
            for variable, text in step["env"].items()
        }
        output, script = self.temp / f"{name}.output", self.temp / f"{name}.sh"
        output.write_text("")
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.folder,
            env={
                **clean_environment(self.libraries),
                "RUNNER_TEMP": str(self.temp),
                "GITHUB_ACTION_PATH": str(ROOT),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(self.temp / "summary.md"),
                **env,
            },
            capture_output=True,
            text=True,
            check=False,
        )
        written = (line.partition("=") for line in output.read_text().splitlines())
        self.outputs |= {f"{name}.{key}": value for key, _, value in written}
        return done


def clean_environment(libraries: Path) -> dict[str, str]:
    """The environment of a step. What blindcal depends on is there already, to save its download."""
    others = ("OPENAI_", "GITHUB_", "PYTHON")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(others)}
    return {**kept, "PYTHONPATH": str(libraries)}


def link_libraries(folder: Path) -> Path:
    """A folder with every installed library but blindcal."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "blindcal" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    with running(AnyPromptServer()) as server:
        yield server.base_url


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory, base_url: str) -> Job:
    """A job in which the action has installed blindcal from its own source, and job."""
    folder, temp = tmp_path_factory.mktemp("workspace"), tmp_path_factory.mktemp("temp")
    write_questions(folder / "questions.csv", 300)
    job = Job(folder, temp, link_libraries(temp / "libraries"), {})
    done = job.run("install", python=sys.executable)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("blindcal, version ")
    run_audit(job, base_url, FEW)
    return job


def run_audit(job: Job, base_url: str, options: str, **more: str) -> None:
    """Run the step that audits, which must succeed."""
    given = {"items": "questions.csv", "model": MODELS[0], "base_url": base_url, "template": TEMPLATE}
    done = job.run("audit", **given, api_key="sk-of-the-test", audit_options=options, **more)
    assert done.returncode == 0, done.stderr


def printed_annotations(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("::")]


def test_inputs_are_data_in_variables() -> None:
    """No script holds an expression, whatever inputs contain, and the steps name the declared inputs."""
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert len(scripts) == 3
    assert not [script for script in scripts if "${{" in script]
    assert set(re.findall(r"inputs\.([\w-]+)", str(STEPS))) == set(ACTION["inputs"])


def test_the_installed_version_is_the_actions_own(job: Job) -> None:
    """What runs is what was installed for the action, not what the machine has."""
    code = "import blindcal; print(blindcal.__file__)"
    done = subprocess.run(
        [f"{job.outputs['install.bin']}/python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(job.libraries),
    )
    assert Path(done.stdout).is_relative_to(job.temp)


def test_a_model_within_its_limits_passes(job: Job) -> None:
    """The check passes with a notice, a table in the summary, a JUnit file, and the files to upload."""
    done = job.run("check", max_ece="0.3", min_accuracy="0.5", check_options="--resamples 40")
    assert done.returncode == 0, done.stderr
    assert job.outputs["check.outcome"] == "passed"
    (notice,) = printed_annotations(done)
    assert notice.startswith(f"::notice title=Calibration%3A {MODELS[0]} on questions.csv::ECE at most 0.3: ")
    assert "### Calibration" in (job.temp / "summary.md").read_text()
    uploaded = next(step for step in STEPS if "uses" in step)["with"]["path"].splitlines()
    paths = [EXPRESSION.sub(lambda found: job.value(found[1], {}), path) for path in uploaded]
    assert paths[0] == job.outputs["audit.report"] == "blindcal-run/report.html"
    assert all((job.folder / path).stat().st_size for path in paths)
    suite = ElementTree.parse(job.folder / "blindcal-run" / "calibration.xml").getroot()
    assert suite.get("failures") == "0"


@pytest.mark.parametrize(
    ("limits", "status", "outcome", "annotation"),
    [
        ({"max_ece": "0.001"}, 3, "failed", "error"),
        ({"min_accuracy": "0.7", "allow_undecided": "false"}, 4, "undecided", "warning"),
        ({"min_accuracy": "0.7", "allow_undecided": "true"}, 0, "undecided", "warning"),
    ],
)
def test_a_limit_that_is_not_kept_fails(
    limits: dict[str, str], status: int, outcome: str, annotation: str, job: Job
) -> None:
    """The step has the status of the check and annotates the reason; undecided limits may be let pass."""
    sure = " --confidence 0.999999" if outcome == "undecided" else ""
    done = job.run("check", check_options=f"--resamples 40{sure}", **limits)
    assert (done.returncode, job.outputs["check.outcome"]) == (status, outcome), done.stdout
    (shown,) = printed_annotations(done)
    assert shown.startswith(f"::{annotation} title=")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"out": "x\noutcome=passed"}, "out: holds a line break or another control character; name a folder"),
        (
            {"audit_options": "--by 'topic"},
            "audit-options: No closing quotation; give every quote its partner",
        ),
    ],
)
def test_an_input_that_cannot_be_meant_is_one_annotation(
    inputs: dict[str, str], message: str, job: Job, base_url: str
) -> None:
    """A line break in the folder would add outputs: they are left as they were, and nothing is audited."""
    before = dict(job.outputs)
    done = job.run("audit", items="questions.csv", model="m", base_url=base_url, **inputs)
    assert done.returncode == 1
    assert (done.stdout + done.stderr).strip() == f"::error title=blindcal::{message}"
    assert job.outputs == before


HOSTILE = "$(touch broken) `touch broken` \"; touch broken; ' && touch broken"


def test_hostile_inputs_are_data(job: Job, base_url: str) -> None:
    """Code in an input, from the title of a pull request for example, is not run."""
    before = sorted(job.folder.iterdir())
    done = job.run("audit", items=HOSTILE, model=HOSTILE, base_url=base_url, template=HOSTILE, out="hostile")
    assert done.returncode == 1
    assert printed_annotations(done) == [
        "::error title=blindcal audit::The audit ended with exit status 1; the log says why."
    ]
    dash = job.run("audit", items="--help", model="m", base_url=base_url, out="hostile")
    assert dash.returncode == 1
    options = job.run("audit", items="questions.csv", model="m", audit_options="$(touch broken) `x`", out="h")
    assert options.returncode == 2
    assert sorted(job.folder.iterdir()) == before
