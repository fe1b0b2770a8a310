"""Open the run file and the endpoint of a command, and close both at its end."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from blindcal.asking.governor import Governor
from blindcal.asking.run_context import RunContext
from blindcal.atomic_write import writing
from blindcal.endpoints.address import Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.refusals import Accepted
from blindcal.errors import FileError
from blindcal.store.run_store import RUN_FILE, Store

StoreT = TypeVar("StoreT", bound=Store)
KEPT = "every answer so far is kept; run the same again to continue"


@contextlib.asynccontextmanager
async def opened_run(
    folder: Path,
    address: Address,
    run: RunContext,
    store_type: type[StoreT],
    accepted: Accepted | None = None,
) -> AsyncIterator[tuple[StoreT, Governor]]:
    """Open a run file and an endpoint; if nothing was asked before an error, no file is left."""
    with writing(folder):
        begun = (folder / RUN_FILE).exists()
    if run.endpoint is None:
        address.check_key(begun=begun)
    with store_type.open(folder / RUN_FILE) as store:
        asked = run.endpoint or HttpEndpoint(address)
        if isinstance(asked, HttpEndpoint):
            noted = msgspec.convert(store.note("accepted"), Accepted | None)
            asked.accepted = noted or accepted or Accepted()
        try:
            yield store, Governor(asked, run, store, kept=KEPT)
        finally:
            await asked.close()


@contextlib.contextmanager
def answers_kept() -> Iterator[None]:
    """Add to a `FileError` that no answer is lost."""
    try:
        yield
    except FileError as error:
        kept = "every answer is kept; run the same again to write the files, without asking anything"
        raise FileError(error.message, remedy=f"{error.remedy}; {kept}") from error
