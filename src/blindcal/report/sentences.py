"""The headline of a result, its cautions, and what the steadiness of the endpoint means, in sentences.

The headline begins with how often the model is right where it is confident: "When it says “Yes” with at least
90% confidence, as it does for 34% of the questions, it is right 78% of the time (74% to 82%)." It quotes a
whole tail, not a point of the curve, because few answers may lie near a point. The confidence is the highest
round one that is common and has a narrow interval; without one, the headline is about all answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeAlias

from markupsafe import Markup

from blindcal.estimate.contradiction import DrawnAnswers
from blindcal.estimate.findings import Curve
from blindcal.estimate.noise import ControlCounts
from blindcal.estimation import FEW_ITEMS
from blindcal.records import Estimate
from blindcal.report.wording import (
    Numbers,
    few_groups,
    least_confidence,
    one_label,
    valid_answers,
    word,
    wording_of,
)
from blindcal.results.result import AuditResult, Steadiness

ALPHA = 0.05
END = 0.95
QUOTED = (END, 0.9, 0.8, 0.7, 0.6)  # round confidences, the most informative first
COMMON = 1 / 3  # least share of the items above a quoted confidence
NOTABLE = 0.1  # least share that is mentioned
MOST_OUTSIDE = 0.1  # share of the probability on neither answer, above which a caution says so
WIDEST = 0.2  # no sentence quotes a wider interval
LEAST_RUN = 0.05  # shortest stretch of confidence off the diagonal that is mentioned
TOP = 0.97  # a stretch that ends above this confidence has no upper end in words
NEAR = 0.015  # a stretch that starts this close to the lowest confidence has no lower end in words

#: A sentence in which ``{path:form}`` is a number, and ``{yes}`` and ``{no}`` are the answer words.
Template: TypeAlias = str


def headline(result: AuditResult) -> tuple[Markup, ...]:
    """The sentences at the top of a report, as HTML."""
    templates = [quote(result), _error(result), _verdict(result)]
    if result.ece.value is None:
        templates = [_nothing(result)]
    return _filled(result, templates)


def _filled(result: AuditResult, templates: Iterable[Template | None]) -> tuple[Markup, ...]:
    numbers, words = Numbers(result), {"yes": word(result, "positive"), "no": word(result, "negative")}
    return tuple(numbers.sentence(template, **words) for template in templates if template is not None)


def _nothing(result: AuditResult) -> Template:
    words = wording_of(result).asked_for
    if not result.counts.valid:
        none = "Nothing can be said about its calibration: not one of {counts.invalid:count} answers was"
        return f"{none} {words}."
    valid = f"{{{valid_answers(result)}:count}}"
    return f"Its calibration error could not be estimated: only {valid} answers were {words}, too few."


def _error(result: AuditResult) -> Template:
    if result.ece.has_interval:
        return "Its calibration error is {ece.value} ({ece.level:level} interval: {ece.low} to {ece.high})."
    return (
        "Its calibration error is estimated at {ece.value}. This method gives no interval, so the effect of "
        "chance is unknown."
    )


# Cautions


def cautions(result: AuditResult) -> tuple[Markup, ...]:
    """What limits the estimates or the use of the model, the most serious first, as HTML."""
    return _filled(
        result, [*_about_items(result), _invalid(result), _outside(result), _no_better_than_chance(result)]
    )


def _about_items(result: AuditResult) -> Iterator[Template]:
    counts, repeated = result.counts, result.repeated
    if (side := one_label(result)) is not None:
        yield (
            f"Every item has the {side} label. Nothing is known about items with the other label, and "
            "metrics that need both labels are left out."
        )
    if result.answers and result.accuracy.value in (0.0, 1.0):
        every = "right" if result.accuracy.value else "wrong"
        yield f"Every answer given is {every}. Metrics that need right and wrong answers are left out."
    if counts.items < FEW_ITEMS:
        interval = result.ece.has_interval
        advice = "rely on the intervals, not on the estimates" if interval else "the estimates are unreliable"
        yield f"There are only {{counts.items:count}} items: {advice}."
    if repeated is not None:
        check = (
            f" {{repeated.conflicting:count}} items share a prompt with an item of "
            f"{'another' if result.answers else 'the other'} label: check these labels."
        )
        yield (
            "{repeated.items:count} of {counts.items:count} items have the prompt of another item. They are "
            "answered alike, so the intervals count items with the same prompt as one observation."
            f"{check if repeated.conflicting else ''}"
        )
    if few_groups(result):
        several = (counts.groups or 0) > 1
        where = "in only {counts.groups:count} groups" if several else "in one group"
        means = (
            "the intervals are wide because each group counts as one observation"
            if several
            else "what holds for other groups is unknown, and the intervals are as wide as that"
        )
        which = "The" if several else "All"
        yield f"{which} items are {where}, and the items of a group may be alike: {means}."


def _invalid(result: AuditResult) -> Template | None:
    if not result.counts.invalid or result.ece.value is None:
        return None
    what = "were neither “{yes}” nor “{no}”"
    if result.estimator == "stated":
        what = "could not be read"
    elif result.answers:
        what = "were none of those asked for"
    return (
        f"{{counts.invalid:count}} of {{{valid_answers(result)}+counts.invalid:count}} answers {what}. If "
        "they had been valid, the calibration error of these items would be between {ece_if_invalid.0} and "
        "{ece_if_invalid.1}."
    )


def _outside(result: AuditResult) -> Template | None:
    if result.shown is None or result.shown.outside <= MOST_OUTSIDE:
        return None
    where = "neither “{yes}” nor “{no}”. The confidence compares only these two"
    if result.answers:
        where = "none of the answers. The confidence compares only the answers"
    return f"On average, {{shown.outside}} of the probability is on first words that are {where}."


def _no_better_than_chance(result: AuditResult) -> Template | None:
    auroc, several = result.auroc, bool(result.answers)
    if not auroc.has_interval or (auroc.low or 0.0) > 0.5:
        return None
    between = "(AUROC {auroc.low:three} to {auroc.high:three})"
    if (auroc.high or 0.0) < 0.5:
        if several:
            return (
                f"It is more confident in its wrong answers than in its right ones {between}. Are the labels "
                "in the order of the answers?"
            )
        return (
            f"It is more confident in “{{yes}}” where that is wrong than where it is right {between}. Are "
            "the labels or the two answer words swapped?"
        )
    if several:
        return (
            "Its confidence may be no better than a coin flip at telling right answers from wrong ones "
            f"{between}. If so, no threshold on it makes the answers more reliable."
        )
    return (
        f"It may be no better than a coin flip at telling positive items from negative ones {between}. If "
        "so, no threshold makes its answers useful, however well calibrated they are."
    )


# How often the model is right where it is confident


def quote(result: AuditResult) -> Template | None:
    """How often the model is right where it is confident; ``None`` if too little is known."""
    known = result.accuracy.value is not None
    if (side := one_label(result)) is not None:
        interval = " ({accuracy.low} to {accuracy.high})" if result.accuracy.has_interval else ""
        every = f"The correct answer to every question is “{_SAID[side]}”. It gets {{accuracy.value}} right"
        return f"{every}{interval}." if known else None
    if (tail := quoted_tail(result)) is not None:
        about = f"When it says “{_SAID[tail.side]}” with at least {tail.threshold} confidence, as it does for"
        if result.answers:
            about = f"When it is at least {tail.threshold} confident in its answer, as it is for"
        rate = tail.number("positive_rate.value")
        right, low, high = (f"{{{tail.precision}.{end}:whole}}" for end in ("value", "low", "high"))
        return f"{about} {rate} of the questions, it is right {right} of the time ({low} to {high})."
    if not known or result.overconfidence.value is None:
        return None
    interval = " ({accuracy.low:whole} to {accuracy.high:whole})" if result.accuracy.has_interval else ""
    mean = "{accuracy.value+overconfidence.value:whole}"
    return f"It is right {{accuracy.value:whole}} of the time{interval}, and {mean} confident on average."


_SAID = {"positive": "{yes}", "negative": "{no}"}


def _sides(result: AuditResult) -> tuple[str, ...]:
    return ("positive",) if result.answers else ("positive", "negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The answers of one side from a confidence up; ``row`` is the index of their operating point."""

    side: str
    share: float
    right: Estimate
    row: int

    def number(self, name: str) -> Template:
        """A number of the operating point, seen from this side."""
        flip = "" if self.side == "positive" else "1-"
        return f"{{{flip}operating.{self.row}.{name}:whole}}"

    @property
    def threshold(self) -> Template:
        return self.number("threshold")

    @property
    def precision(self) -> str:
        return f"operating.{self.row}.{'precision' if self.side == 'positive' else 'negative_precision'}"


def tail_of(result: AuditResult, side: str, confidence: float, least: float = NOTABLE) -> Tail | None:
    """The answers of a side from a confidence up; ``None`` if they are few or the interval is wide."""
    yes = side == "positive"
    at = confidence if yes else 1 - confidence
    for row, point in enumerate(result.operating):
        if abs(point.threshold - at) < 1e-6 and (rate := point.positive_rate.value) is not None:
            share = rate if yes else 1 - rate
            right = point.precision if yes else point.negative_precision
            if share >= least and right.has_interval and 2 * right.half_width <= WIDEST:
                return Tail(side=side, share=share, right=right, row=row)
    return None


def quoted_tail(result: AuditResult) -> Tail | None:
    """The answers that the headline quotes; ``None`` if it is about all answers."""
    for confidence in QUOTED:
        tails = [tail for side in _sides(result) if (tail := tail_of(result, side, confidence, COMMON))]
        if tails:
            return max(tails, key=lambda tail: tail.share)
    return None


# The verdict


def _verdict(result: AuditResult) -> Template | None:
    over, p = result.overconfidence, result.calibrated_pvalue
    if not over.has_interval:
        return None
    if result.direction != "undecided":
        where = _where(result, over=result.direction == "overconfident")
        return f"It is {result.direction} {where or 'overall'}."
    if p is not None and p < ALPHA:
        lean = result.leaning
        if lean.has_interval and 0 not in lean:
            side = "positive" if (lean.low or 0.0) > 0 else "negative"
            return f"It leans towards “{_SAID[side]}” more than the labels do."
        return "It is not calibrated, but neither over- nor underconfident overall."
    if result.ece.high is None:
        return None
    return (
        "Chance alone could produce this error in a perfectly calibrated model; the true error may be as "
        "large as {ece.high}."
    )


def _where(result: AuditResult, *, over: bool) -> Template:
    """The confidences that are off; empty if the curve shows none."""
    if result.curve is None or result.curve.low is None or result.curve.high is None:
        return ""
    if result.answers:
        least = least_confidence(result)
        run = _clear_run(result.curve, "positive", over, least)
        return "" if run is None else f"in answers {_extent(result.curve, run, flipped=False, bottom=least)}"
    places = []
    for side in _sides(result):
        if (run := _clear_run(result.curve, side, over)) is not None:
            places.append(f"“{_SAID[side]}” {_extent(result.curve, run, flipped=side == 'negative')}")
        elif over and (end := tail_of(result, side, END)) is not None and (end.right.high or 1.0) < END:
            # the curve cannot show such a short stretch, but many answers may lie there
            places.append(f"“{_SAID[side]}” with at least {end.threshold} confidence")
    return f"when it says {', and '.join(places)}" if places else ""


def _clear_run(curve: Curve, side: str, over: bool, least: float = 0.5) -> tuple[int, int] | None:
    """The ends of the longest stretch, above ``least`` for ``side``, where the band is off the diagonal."""
    yes = side == "positive"
    places = [k for k, f in enumerate(curve.f) if (f > least if yes else f < least)]
    if not yes:
        places.reverse()
    below = over == yes  # an overconfident Yes is right less often than predicted
    edge = curve.high if below else curve.low
    assert edge is not None

    def off(place: int) -> bool:
        return edge[place] < curve.f[place] if below else edge[place] > curve.f[place]

    runs = [list(run) for clear, run in groupby(places, off) if clear]
    longest = max(runs, key=lambda run: abs(curve.f[run[-1]] - curve.f[run[0]]), default=[0])
    long = abs(curve.f[longest[-1]] - curve.f[longest[0]]) >= LEAST_RUN - 1e-9
    return (longest[0], longest[-1]) if long else None


def _extent(curve: Curve, run: tuple[int, int], *, flipped: bool, bottom: float = 0.5) -> Template:
    lowest, highest = (abs(flipped - curve.f[place]) for place in run)
    begin, end = (f"{{{'1-' if flipped else ''}curve.f.{place}:whole}}" for place in run)
    if highest >= TOP:
        return f"with over {begin} confidence" if lowest > bottom + NEAR else "at any confidence"
    if lowest <= bottom + NEAR:
        return f"with up to {end} confidence"
    return f"with {begin} to {end} confidence"


# The steadiness of the endpoint

DRIFT_LEVEL = 0.001
"""A change of the answers is reported if its p-value is below this level."""
MOST_FLIPS = 0.07
"""Largest share of flipped answers that the estimates can allow for."""


def with_sentences(steady: Steadiness, slack: int, drawn: DrawnAnswers | None = None) -> Steadiness:
    """Add warnings and notes in words; up to ``slack`` queries were under way at the same time.

    ``drawn`` compares the answers with the logprobs beside them.
    """
    warnings, notes = [], []
    counts, rate, drift, served = steady.controls, steady.flip_rate, steady.drift, steady.served
    seen = control_words(counts)
    if steady.bias_lost is not None:
        warnings.append(
            f"logit_bias stopped acting during the run, at about query {steady.bias_lost:,} of "
            f"{steady.queries:,}, and the run was forced to go on: {seen}. The estimates may be "
            "meaningless."
        )
    elif rate.value is not None and rate.value > MOST_FLIPS:
        warnings.append(
            f"About {_percent(rate)} of the answers do not follow logit_bias: {seen}. That is "
            "too many to allow for, and the estimates may be meaningless."
        )
    elif counts.failed or counts.disagreed:
        notes.append(
            f"The answers are noisy: {seen}. If the estimator is latent, the estimates allow "
            f"for {_percent(rate)} flipped answers and for a jitter of {steady.jitter:.2g} in log-odds."
        )
    if drift is not None and drift.pvalue < DRIFT_LEVEL:
        warnings.append(
            f"The answers changed during the run, after about {drift.at:,} of {steady.queries:,} queries "
            f"(p-value {drift.pvalue:.1g}): the estimates mix what the endpoint was before with what it was "
            "after."
        )
    elif steady.moved:
        warnings.append(
            f"The log-odds {'rose' if steady.moved > 0 else 'fell'} during the run: items asked next to "
            "where their answers turned in the probe were answered otherwise. The estimates mix what the "
            "endpoint was before with what it was after."
        )
    if steady.repeated_share:
        warnings.append(
            f"About {steady.repeated_share:.0%} of the drawn answers repeat an earlier answer to the item, "
            "as out of a cache: the draws are not independent, and the estimates are wrong."
        )
    if steady.spread is not None and steady.spread.most >= 0.0005:  # less is rounding
        notes.append(
            f"The probability of the same question moves by ±{steady.spread.deviation:.2g} from request to "
            f"request ({steady.spread.pairs} were asked twice, and differ by {steady.spread.most:.2g} "
            "at most). That is part of what is measured: decisions near a threshold may fall either way."
        )
    if drawn is not None and drawn.surprising:
        warnings.append(
            f"The logprobs contradict the answers beside them: {_unlikely(drawn)}. They may be swapped, of "
            "another model or changed by a temperature, and the estimates, read from them, meaningless."
        )
    elif drawn is not None and drawn.too_sure:
        no_draws = not drawn.unlikely
        why = "ignores the temperature" if no_draws else "cuts off rare answers"
        (notes if no_draws else warnings).append(
            f"The logprobs do not agree with the answers beside them: {_unlikely(drawn)}. Either the "
            f"endpoint {why}, or its logprobs are less sure than the model, and the estimates are wrong."
        )
    if len(served) > 1:
        replaced = all(earlier.last <= later.first + slack for earlier, later in pairwise(served))
        models = {server.model for server in served}
        (warnings if replaced and len(models) > 1 else notes).append(_servers(steady, replaced))
    return replace(steady, warnings=tuple(warnings), notes=tuple(notes))


def _unlikely(drawn: DrawnAnswers) -> str:
    shown = f"{drawn.unlikely:,} of {drawn.likeliest.size:,} are not the likeliest one shown"
    return f"{shown}, and about {drawn.expected:.3g} should be"


def _servers(steady: Steadiness, replaced: bool) -> str:
    old, new, *others = steady.served
    more = f" and {len(others)} more" if others else ""
    if replaced:
        return (
            f"The endpoint was replaced during the run: replies came from {old.words} and, from about query "
            f"{new.first:,} of {steady.queries:,} on, from {new.words}{more}. The estimates mix them."
        )
    return (
        f"Replies came from {len(steady.served)} servers in turns: {old.words} ({old.answers:,} answers), "
        f"{new.words} ({new.answers:,}){more}. That is usual if a provider spreads its load."
    )


def control_words(counts: ControlCounts) -> str:
    """What the control queries showed."""
    forced = f"{counts.failed:,} of {counts.forced:,} forced answers were wrong"
    repeated = f"{counts.disagreed:,} of {counts.repeated:,} repeated queries were answered differently"
    return f"{forced}, and {repeated}" if counts.repeated else forced


def _percent(rate: Estimate) -> str:
    between = f" ({100 * rate.low:.2g}% to {100 * rate.high:.2g}%)" if rate.low and rate.high else ""
    return f"{100 * float(rate):.2g}%{between}"
