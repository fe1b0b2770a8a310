"""What an audit asks: the design of its method, for all items or a sample of them."""

from __future__ import annotations

from dataclasses import dataclass

from blindcal.auditing.item_sample import sample_stages
from blindcal.auditing.session import Session
from blindcal.design import Design
from blindcal.methods import count_queries, make_design
from blindcal.records import IntArray


@dataclass(frozen=True, slots=True)
class AuditDesign:
    """A design, the items in the sample (``None`` for all), and how many queries it will ask."""

    design: Design
    stages: list[IntArray] | None
    planned: int


def audit_design(session: Session) -> AuditDesign:
    """Design the audit of a session whose method is known; a larger sample is noted in the run file."""
    settings, items = session.settings, session.items
    stages = sample_stages(items, settings, session.store)
    method = settings.design.method
    design = make_design(
        method,
        items.labels,
        queries=settings.queries,
        bins=settings.bins,
        seed=settings.design.seed,
        adaptive=not settings.design.batch,
        stages=stages,
        choices=items.choices,
        summed=settings.summed,
    )
    sizes = [len(items)] if stages is None else [stage.size for stage in stages]
    several = bool(items.answers)
    planned = sum(count_queries(method, n, settings.queries, settings.bins, several=several) for n in sizes)
    return AuditDesign(design, stages, planned)
