"""How a finished audit asked its endpoint, so that it can be asked the same way again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec

from blindcal.auditing.prepared import Prepared
from blindcal.endpoints.query_format import TokenQuestion
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import InputError
from blindcal.records import Item
from blindcal.results.certificate import AskedAs, Certificate
from blindcal.results.run import Run
from blindcal.settings import Settings
from blindcal.store.run_store import RUN_FILE, Store
from blindcal.store.stored import ServedModel
from blindcal.text import printable


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
    def question(self) -> TokenQuestion:
        """How queries are formatted and their answers read."""
        question = self.prepared.question(self.settings)
        assert isinstance(question, TokenQuestion)
        return question

    @property
    def accepted(self) -> Accepted | None:
        """The fields that the endpoint takes; ``None`` if it has refused none."""
        return msgspec.convert(self.noted.accepted, Accepted | None)
