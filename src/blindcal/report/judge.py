"""The verdicts of a judge in words."""

from __future__ import annotations

from markupsafe import Markup

from blindcal.estimate.verdicts import JudgeFindings
from blindcal.report.wording import Numbers

SELECTED = 1e-3  # a p-value below this says that verdicts decided who was labelled
FEW_LABELS = 10


def judge_sentences(numbers: Numbers, found: JudgeFindings) -> tuple[Markup, ...]:
    """The most important numbers, in sentences."""
    templates = [
        "The judge passes {judge.judged_pass_rate} of {judge.items:count} items. By {judge.labelled:count} "
        "labels, {judge.pass_rate.value} should pass ({judge.pass_rate.level:level} interval: "
        "{judge.pass_rate.low} to {judge.pass_rate.high})."
    ]
    if found.tpr.value is not None:
        templates.append("It passes {judge.tpr.value} of what should pass.")
    if found.tnr.value is not None:
        templates.append("It fails {judge.tnr.value} of what should fail.")
    more = "{judge.more_labels:count} more labels, chosen at random, would halve the interval."
    if found.more_labels is None:
        more = "Labels of all items would not halve the interval: that takes more items."
    return tuple(map(numbers.sentence, [*templates, more]))


def judge_warnings(found: JudgeFindings) -> tuple[str, ...]:
    """What makes the figures doubtful, in sentences."""
    warnings = []
    if (pvalue := found.selection_pvalue) is not None and pvalue < SELECTED:
        shares = f"{found.labelled_passes:.1%} of the passes and {found.labelled_fails:.1%} of the fails"
        warnings.append(
            f"{shares} have a label, more unequal than chance explains: these figures assume labels of items "
            "drawn at random, and are wrong where verdicts decided who was labelled. If labels were drawn at "
            "random among passes and among fails, name the field of the verdict as that of the strata, too"
        )
    few = {"should pass": found.true_passes + found.false_fails}
    few["should fail"] = found.labelled - few["should pass"]
    warnings += [
        f"only {count} labelled items {name}: rates among them are hardly known"
        for name, count in few.items()
        if count < FEW_LABELS
    ]
    if float(found.tpr) + float(found.tnr) <= 1:
        warnings.append("the verdicts say nothing about the labels, or the opposite of what they should")
    return tuple(warnings)
