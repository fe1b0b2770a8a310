"""The result of an audit in a few lines on the console."""

from __future__ import annotations

import shlex
from pathlib import Path

from markupsafe import Markup

from blindcal.cli.console import WIDTH, print_field, print_spend, print_stopped, print_table
from blindcal.estimate.verdicts import JudgeFindings
from blindcal.methods import METHODS
from blindcal.report.judge import judge_warnings
from blindcal.report.next_steps import next_steps
from blindcal.report.page import PAGE_FILE
from blindcal.report.sentences import ALPHA, cautions, headline
from blindcal.report.wording import MINUS, item_count, percent
from blindcal.results.result import RESULT_FILE, AuditResult
from blindcal.results.tables import ANSWERS_FILE
from blindcal.store.run_store import RUN_FILE
from blindcal.text import printable

MOST_PARTS = 12
_KEYBOARD = str.maketrans({"“": '"', "”": '"', MINUS: "-"})


def print_result(result: AuditResult, folder: Path, *, verbose: bool = False) -> None:
    """Print the headline, warnings, the ECE, the report and the next step; everything if ``verbose``."""
    for sentence in headline(result):
        print_field("", _plain(sentence), width=0)
    _print_warnings(result)
    print_field("ECE", f"{result.ece:.4f} in {len(result.bins)} bins, {item_count(result.counts)} items")
    if verbose:
        _print_details(result)
    _print_parts(result)
    if result.judge is not None:
        print_judge(result.judge)
    if verbose:
        _print_answers(result)
    _print_comparison(result)
    print_stopped(result.stopped)
    if verbose:
        written = [name for name in (RESULT_FILE, ANSWERS_FILE, RUN_FILE) if (folder / name).exists()]
        print_field("files", f"{folder}: {', '.join(written)}")
    if (folder / PAGE_FILE).exists():
        print_field("report", str(folder / PAGE_FILE))
    if result.complete and (folder / RUN_FILE).exists() and (steps := next_steps(result)):
        line = steps[0].line.replace("RUN", shlex.quote(str(folder)))
        print_field("next", line.replace("ITEMS", shlex.quote(printable(result.items))))


def _plain(sentence: Markup) -> str:
    """A sentence of the page, for any terminal."""
    return sentence.striptags().translate(_KEYBOARD)


def _print_warnings(result: AuditResult) -> None:
    if result.objection is not None:
        why = printable(result.objection, 400)
        print_field("WARNING", f"forced: {why}; these estimates may mean nothing")
    for text in result.warnings:
        print_field("WARNING", printable(text, 600))
    if result.unverified is not None:
        what = printable(result.unverified, 400)
        print_field("WARNING", f"unverified: {what}; if it is not what it should be, the estimates are wrong")
    for sentence in cautions(result):
        print_field("WARNING", _plain(sentence))


def _print_details(result: AuditResult) -> None:
    print_field("direction", _direction(result))
    print_field("AUROC", _auroc(result))
    print_field("accuracy", f"{result.accuracy:.4f}")
    if result.calibrated_pvalue is not None:
        print_field("p-value", f"{result.calibrated_pvalue:.3g} for perfect calibration")
    if result.ece.has_interval:
        items = (
            f"the intervals refer to all questions like these, the estimates to these {result.counts.items:,}"
        )
        print_field("note", items)
    for text in () if result.steadiness is None else result.steadiness.notes:
        print_field("note", printable(text, 600))
    _print_by_answer(result)
    print_field("measures", result.measures)


def _direction(result: AuditResult) -> str:
    over, lean = result.overconfidence, result.leaning
    text: str = result.direction
    if not over.has_interval:
        text = "no interval by this method"
    elif text == "undecided":
        text = "neither overconfidence nor underconfidence is shown"
    if over.value is not None:
        text += f": confidence minus accuracy {over:+.4f}"
    if lean.value is not None:
        text += f"; P(positive) minus the share of positive labels {lean.value:+.4f}"
    return text


def _auroc(result: AuditResult) -> str:
    if result.auroc.value is None and result.estimator == "latent":
        if result.answers:
            return "needs right and wrong answers"
        if result.counts.positive_labels in (0, result.counts.items):
            return "needs items of both labels"
    return f"{result.auroc:.4f}"


def _print_by_answer(result: AuditResult) -> None:
    if not result.by_answer:
        return
    print_field("answers", "those given")
    rows = [
        [
            printable(result.answers[answer.answer], 30),
            f"{answer.given:,} given,",
            f"{answer.right:,} right",
            f"confidence minus accuracy {answer.overconfidence:+.3f}",
            "few items" if answer.few else "",
        ]
        for answer in result.by_answer
    ]
    print_table(rows, "<>><<", indent=WIDTH)
    if result.classwise.value is not None:
        words = "of each answer's own probability, as a yes/no question, in the mean"
        print_field("classwise", f"ECE {result.classwise:.4f} {words}")
    if (margins := result.margins) is not None:
        chance = ""
        if margins.pvalue is not None:
            more = "more than chance explains" if margins.pvalue < ALPHA else "which may be chance"
            chance = f", {more} (p-value {margins.pvalue:.3g})"
        print_field(
            "shares" if result.settings.get("permute") is None else "position",
            f"for each answer to be given as often as it is right, {percent(margins.moved)} of all would "
            f"have to change{chance}",
        )


def _print_parts(result: AuditResult) -> None:
    if not result.parts:
        return
    largest = sorted(result.parts, key=lambda part: part.items, reverse=True)[:MOST_PARTS]
    heading = f"by {printable(result.by or '', 40)}"
    if len(largest) < len(result.parts):
        heading += f", the {len(largest)} largest of {len(result.parts)}"
    verdict = "whether they differ by more than chance cannot be tested"
    if (pvalue := result.parts_pvalue) is not None:
        chance = "they differ by more than chance" if pvalue < ALPHA else "their differences may be chance"
        verdict = f"{chance} (p-value {pvalue:.3g})"
    print_field("parts", f"{heading}; {verdict}")
    rows = [
        [
            printable(part.name, 30),
            f"{part.items:,} items",
            f"ECE {part.ece:.3f}",
            "" if part.accuracy.value is None else f"accuracy {part.accuracy.value:.3f}",
            "few items" if part.few else "",
        ]
        for part in result.parts
        if part in largest
    ]
    print_table(rows, "<><<<", indent=WIDTH)


def _print_answers(result: AuditResult) -> None:
    spend = result.spend
    if (shown := result.shown) is not None:
        no = "no" if result.answers else "neither"
        print_field(
            "shown",
            f"{percent(shown.outside)} of the probability is on {no} answer (at most "
            f"{percent(shown.most_outside)}); tokens that are not shown leave {percent(shown.open)} open (at "
            f"most {percent(shown.most_open)})",
        )
    if result.invalid_reasons:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in result.invalid_reasons.items())
        print_field("unread", reasons)
    if METHODS[result.method].given:
        return
    controls = f", {spend.control_queries} to control" if spend.control_queries else ""
    print_spend(spend, f"{spend.probe_queries} to probe{controls}")


def _print_comparison(result: AuditResult) -> None:
    if result.oracle is None:
        return
    inside = {True: ", inside the interval", False: ", OUTSIDE the interval", None: ""}
    error = result.oracle.difference
    print_field(
        "oracle",
        f"ECE {result.oracle.ece:.4f}{inside[result.oracle.inside_interval]}"
        + ("" if error is None else f"; the error of the estimate is {error:+.4f}"),
    )
    if (other := result.oracle.other_model) is not None:
        print_field(
            "WARNING", f"the oracle was scored with {printable(other, 80)!r}: is this the same model?"
        )


def print_judge(found: JudgeFindings) -> None:
    """Print how far the verdicts of a judge can be trusted."""
    for text in judge_warnings(found):
        print_field("WARNING", text)
    print_field("judged", f"{percent(found.judged_pass_rate)} of {found.items:,} items pass")
    print_field("pass rate", f"{found.pass_rate:.4f} in truth, by {found.labelled:,} labels")
    print_field("or", f"{found.labels_alone:.4f} by the labels alone")
    print_field("or", f"{found.rogan_gladen:.4f} by Rogan and Gladen")
    for name, rate in {"TPR": found.tpr, "TNR": found.tnr, "precision": found.precision}.items():
        print_field(name, f"{rate:.4f}")
    print_field("kappa", f"{found.kappa:.4f}; agreement {found.agreement:.4f}")
    wanted = found.more_labels
    more = "labels of all items would not" if wanted is None else f"{wanted:,} more would"
    print_field("labels", f"{more} halve the interval of the pass rate")
