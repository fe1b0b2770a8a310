"""Records that pass from preparing an audit to asking, and what is read back from a finished one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from blindcal.asking.controls import KnownFlip
from blindcal.asking.run_context import RunContext
from blindcal.endpoints.query_format import (
    CONSTRAINTS,
    ConfidenceQuestion,
    ConstraintName,
    DecisionQuestion,
    FreeTextQuestion,
    LogprobQuestion,
    QuestionFormat,
    TokenQuestion,
)
from blindcal.endpoints.refusals import Accepted
from blindcal.endpoints.replies import TOP_LOGPROBS
from blindcal.errors import InputError
from blindcal.items.question_files import Items
from blindcal.methods import METHODS
from blindcal.probing.findings import Probe
from blindcal.records import AnswerFormat, Item, Targets
from blindcal.results.certificate import AskedAs, Certificate
from blindcal.results.run import Run
from blindcal.settings import Settings
from blindcal.store.run_file import ServedModel
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.text import printable


@dataclass(frozen=True)
class Session:
    """An audit under way; ``settings`` have all defaults once it has begun."""

    items: Items
    settings: Settings
    store: Store
    run: RunContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What must be known before the first query; noted in the run, so that it is paid for once.

    - ``objection``: why the audit should not go on, if it was forced to
    - ``unverified``: what the probe could not verify although the estimates depend on it
    - ``top``: number of logprobs that the endpoint shows
    - ``at_once``: highest number of answers per request
    - ``anchors``: items, by number, with known flips
    """

    targets: Targets
    max_shift: float
    jitter: float = 0.0
    probe: Probe | None = None
    objection: str | None = None
    unverified: str | None = None
    method: str = ""
    answer_format: AnswerFormat = "word"
    constraint: ConstraintName | None = None
    top: int = TOP_LOGPROBS
    tempered: bool = True
    at_once: int = 1
    anchors: tuple[KnownFlip, ...] = ()

    def question(self, settings: Settings) -> QuestionFormat:
        """How queries are formatted and their answers read."""
        design, most = settings.design, settings.max_tokens(self.answer_format)
        if settings.estimator_name == "stated":
            return ConfidenceQuestion(
                settings.answer_words, settings.prompt.confidence_wording, most, self.tempered
            )
        method = METHODS[design.method]
        if method.way == "decisions":
            return DecisionQuestion(settings.answer_words, settings.prompt.graded)
        if method.logprobs:
            return LogprobQuestion(self.targets.words, self.targets.semantics, self.top, design.seed)
        if self.answer_format != "word":
            return FreeTextQuestion(
                settings.answer_words, self.answer_format, most, tempered=method.tempered, seed=design.seed
            )
        if self.constraint is not None:
            most = max(most, CONSTRAINTS[self.constraint].max_tokens)
        return TokenQuestion(
            self.targets,
            design.offset,
            biased=method.biased,
            seed=design.seed,
            tempered=method.tempered,
            max_tokens=most,
            constraint=self.constraint,
            own_noise=design.seed if method.summed(self.targets.semantics) else None,
        )


@dataclass(frozen=True, kw_only=True)
class AskedSettings:
    """How a finished audit asked; ``noted`` is that as stored, ``items`` is ``None`` without prompts."""

    settings: Settings
    prepared: Prepared
    noted: AskedAs
    served: tuple[ServedModel, ...]
    items: list[Item] | None = None

    @classmethod
    def of_run(cls, run: Run, **changes: Any) -> Self:
        """Read the settings of a run; ``changes`` must not concern its items."""
        with Store.read(run.folder / RUN_FILE) as store:
            noted = AskedAs(run.settings, store.note("ready") or {}, store.note("accepted"))
            served, items = tuple(store.served_names()), store.questions()
        return cls._read(noted, "the audit", "audit again", changes, served=served, items=items)

    @classmethod
    def of_certificate(cls, certificate: Certificate, **changes: Any) -> Self:
        """Read the settings in a certificate, with some changed."""
        served = certificate.served
        return cls._read(certificate.settings, "the certificate", "certify again", changes, served=served)

    @classmethod
    def _read(cls, noted: AskedAs, source: str, remedy: str, changes: dict[str, Any], **more: Any) -> Self:
        try:
            settings = Settings.noted(noted.config).replace(group_field="group", sample=None, **changes)
            prepared = msgspec.convert(noted.ready, Prepared)
        except (InputError, TypeError, msgspec.ValidationError) as error:
            why = f"{source} does not say how to ask ({printable(str(error))})"
            raise InputError(why, remedy=remedy) from None
        return cls(settings=settings, prepared=replace(prepared, probe=None), noted=noted, **more)

    @property
    def question(self) -> QuestionFormat:
        """How queries are formatted and their answers read."""
        return self.prepared.question(self.settings)

    @property
    def accepted(self) -> Accepted | None:
        """The fields that the endpoint takes; ``None`` if it has refused none."""
        return msgspec.convert(self.noted.accepted, Accepted | None)
