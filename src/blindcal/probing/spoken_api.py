"""Which API does an address speak? One item, asked in each form of a decision API, shows it.

Some services speak one form at the path of the other, so the path says nothing. An endpoint that refuses both
is taken for a chat.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlsplit

from blindcal.endpoints import Endpoint
from blindcal.endpoints.address import DECISION_APIS, Address
from blindcal.endpoints.http import HttpEndpoint
from blindcal.errors import EndpointError, FatalError
from blindcal.records import Request

_NO_PATH = (404, 405, 501)
_EVERYWHERE = (None, 401)  # statuses of errors that are not about the form: no connection, or no key


async def find_api(endpoint: HttpEndpoint, asked: Endpoint, request: Request) -> tuple[Address | None, str]:
    """The address as the endpoint speaks a decision API, or ``None``, and in one line why.

    ``request`` has a typed question, and ``asked`` sends it to ``endpoint``.
    """
    address, refusals, tried = endpoint.address, list[str](), 0
    urls = dict.fromkeys(replace(address, api=form).completion_url for form in DECISION_APIS)
    try:
        for url in urls:
            first = next(form for form in DECISION_APIS if urlsplit(url).path.rstrip("/").endswith(form))
            for form in sorted(DECISION_APIS, key=lambda form: form != first):
                at_its_own = replace(address, api=form)
                spoken = at_its_own if at_its_own.completion_url == url else replace(at_its_own, base_url=url)
                endpoint.turn_to(spoken, on_trial=True)
                tried += 1
                try:  # a seed of its own, so that no refusal kept in the run is taken for that of another
                    await asked.ask(replace(request, seed=tried))
                except EndpointError as error:
                    if isinstance(error, FatalError) and error.status in _EVERYWHERE:
                        raise
                    why = str(error.status) if error.status in _NO_PATH[:2] else error.message
                    refusals.append(f"{form} at /{first}: {why}")
                    if error.status in _NO_PATH:
                        break
                else:
                    return spoken, f"the endpoint speaks {form} at /{first}"
    finally:
        endpoint.turn_to(address)
    return None, f"this is no decision API ({'; '.join(refusals)})"
