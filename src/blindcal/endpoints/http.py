"""A client for any OpenAI-compatible endpoint.

Nothing is retried here: that is up to the governor of the run. Every failure becomes one of the three
endpoint errors.

The API key is read from an environment variable and sent only as a header. It appears in no ``repr``, error,
log or file: redirects are not followed, an address that holds a key is refused, and responses are redacted
before anything reads them.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import msgspec

from blindcal.endpoints import refusals, secrets
from blindcal.endpoints.address import Address, Api, is_loopback
from blindcal.endpoints.completion_form import CompletionForm
from blindcal.endpoints.decision_forms import DecisionForm, OpenAIDecisions, SystemOne
from blindcal.endpoints.refusals import OPENAI_SAMPLERS, Accepted, changes_nothing
from blindcal.endpoints.replies import named_by_id
from blindcal.errors import EndpointError, FatalError, RetryableError
from blindcal.json_form import JsonError, read_json
from blindcal.records import Reply, Request
from blindcal.text import printable

if TYPE_CHECKING:
    from blindcal.endpoints.http_client import HttpClient, ServerResponse  # a plan does not need them

_BROKEN = "\ufffd"
"""What stands for a part of a character."""
FORMS: Mapping[Api, type[CompletionForm | DecisionForm]] = {
    **dict.fromkeys(("auto", "chat", "completions"), CompletionForm),
    "decisions": OpenAIDecisions,
    "systemone": SystemOne,
}
NOT_OFFERED = frozenset({400, 401, 403, 404, 405, 422, 501})


def _load_client() -> None:
    """Load the HTTP client in a thread that never ends.

    pyreqwest's allocator takes the loading thread for the main thread; once it ends, the next client crashes.
    """
    loaded = threading.Event()

    def load() -> None:
        try:
            importlib.import_module("blindcal.endpoints.http_client")
        finally:
            loaded.set()
        threading.Event().wait()

    if "pyreqwest" not in sys.modules and threading.current_thread() is not threading.main_thread():
        threading.Thread(target=load, name="blindcal-http", daemon=True).start()
        loaded.wait()


class PlainHttpKeyWarning(UserWarning):
    """An API key is about to be sent unencrypted to another machine."""


class HttpEndpoint:
    """A client of one model at one address; use it as an async context manager, or ``close`` it."""

    def __init__(self, address: Address, *, environ: Mapping[str, str] = os.environ) -> None:
        self.turn_to(address)
        url = self._root
        self._key = address.key(environ)
        self._redact = secrets.Redactor(self._key)
        if self._key and url.scheme == "http" and not is_loopback(url.hostname or ""):
            warnings.warn(
                f"the API key in {address.api_key_env} is sent unencrypted to {url.hostname}: use https, "
                f"or unset the variable if the server needs no key",
                PlainHttpKeyWarning,
                stacklevel=2,
            )
        self.accepted = Accepted()
        self._answered: set[tuple[object, ...]] = set()  # settings of requests that got a reply
        self._client: HttpClient | None = None

    def __repr__(self) -> str:
        return f"HttpEndpoint({self.address.model!r} at {self._root.geturl()})"

    def turn_to(self, address: Address, *, on_trial: bool = False) -> None:
        """Use another API or other fields of the same server; nobody needs to know why one on trial fails."""
        self.address, self._on_trial = address, on_trial
        self._root, self.url = address.root, address.completion_url
        self._form = FORMS[address.api](address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def ask(self, request: Request) -> Reply:
        """Send one request and return its reply.

        If the endpoint refuses a field that changes nothing, the request is repeated without it, and the
        field is left out from then on. If the refusal names no field, those that OpenAI does not know are
        left out on trial. Raises `UnsupportedError` for a field that matters.
        """
        unexplained: EndpointError | None = None
        trial: tuple[str, ...] = ()
        while True:
            accepted = self.accepted.without(trial) if trial else self.accepted
            body, settings = self._form.body(request, accepted), accepted.settings_of(request)
            response = await self._send("POST", self.url, body)
            raw = response.body
            outcome = self._form.read(response.status, raw, request)
            if isinstance(outcome, Reply):
                self._answered.add(settings)
                if trial:
                    self.accepted = self.accepted.without(trial)
                if named_by_id(outcome.logprobs) and not accepted.texts:
                    self.accepted = replace(self.accepted, texts=True)
                    raise RetryableError(
                        "logprobs came by token id and not by text",
                        retry_after=0.0,
                        throttled=True,
                        billed=outcome.usage.tokens,
                    )
                if request.top_logprobs and not outcome.logprobs and _BROKEN in outcome.text:
                    return await self._at_zero(request, outcome)
                return outcome
            error = self._refusal(outcome, response.headers, raw)
            if not refusals.is_about_fields(outcome, raw, error):
                raise await self._located(error, raw)
            sent = read_json(body)
            if self._learns(accepted, sent, outcome, raw):
                continue
            unknown = tuple(n for n in sent if n not in OPENAI_SAMPLERS and self._can_leave_out(n, sent[n]))
            # with settings that were answered before, it is not about the fields
            if unexplained is not None or settings in self._answered or not unknown:
                raise unexplained or error
            unexplained, trial = error, unknown

    async def _at_zero(self, request: Request, drawn: Reply) -> Reply:
        """The logprobs beside a greedy answer: llama.cpp shows none of a draw that breaks a character off."""
        if not request.temperature:
            return drawn
        greedy = await self.ask(replace(request, temperature=0.0))
        return replace(
            greedy,
            text=drawn.text,
            prompt_tokens=drawn.prompt_tokens + greedy.prompt_tokens,
            completion_tokens=drawn.completion_tokens + greedy.completion_tokens,
        )

    def body(self, request: Request) -> bytes:
        """The body of a request as it would be sent now."""
        return self._form.body(request, self.accepted)

    def _learns(self, accepted: Accepted, sent: Mapping[str, Any], status: int, raw: bytes) -> bool:
        """Update ``accepted`` if a refusal names fields; raises an error for one that matters."""
        learnt, names = self.accepted.after(raw, sent), refusals.refused(raw, sent)
        left_out = accepted.left_out  # what was sent all the same belongs to the request
        harmless = [n for n in names if n not in left_out and self._can_leave_out(n, sent[n])]
        if learnt.limit != accepted.limit:
            self.accepted = learnt
        elif harmless:
            self.accepted = self.accepted.without(harmless)
        elif names:
            raise refusals.unsupported(names[0], status, raw)
        else:
            return False
        return True

    def _can_leave_out(self, name: str, value: object) -> bool:
        return name not in self.address.extra_body and changes_nothing(name, value)

    async def post(self, path: str, payload: Mapping[str, Any]) -> Any:
        """Post JSON to ``path`` at the server's root; returns JSON, or ``None`` if it is not offered."""
        root = self._root.path.removesuffix("/v1").rstrip("/")
        url = self._root._replace(path=root + path, query="").geturl()
        body = msgspec.json.encode(payload)
        try:
            response = await self._send("POST", url, body)
        except RetryableError:  # after a failure, the server may have closed the connection
            response = await self._send("POST", url, body)
        status, raw = response.status, response.body
        if status != 200:
            if status in NOT_OFFERED and not refusals.blames_model(refusals.message_in(raw)):
                return None
            raise await self._located(self._refusal(status, response.headers, raw), raw)
        try:
            return read_json(raw)
        except JsonError:
            return None

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def models(self, below: str = "") -> tuple[str, ...] | int:
        """The model names listed at ``/models``, or the HTTP status if there is no list."""
        path = self._root.path.rstrip("/")
        response = await self._send("GET", self._root._replace(path=f"{path}{below}/models").geturl())
        try:
            names = tuple(str(model["id"]) for model in read_json(response.body)["data"])
        except (JsonError, KeyError, TypeError):
            names = ()
        return names if response.status == 200 and names else response.status

    async def unlisted(self) -> str | None:
        """A warning if the endpoint lists models but not this one; llama.cpp answers under any name."""
        listed: tuple[str, ...] | int = 0
        if self.address.api_version is None:  # Azure lists models, not deployments
            with contextlib.suppress(EndpointError):
                listed = await self.models()
        model = self.address.model
        if isinstance(listed, int) or model in listed:
            return None
        return (
            f"the endpoint has no model {printable(model, 80)!r}; it lists {refusals.nearest(model, listed)}"
        )

    def _refusal(self, status: int, headers: Mapping[str, str], raw: bytes) -> EndpointError:
        address, message = self.address, refusals.message_in(raw)
        variable = printable(address.api_key_env, 80)
        if status == 401 or refusals.blames_key(message):
            says = f" ({status}): {message}" if message else f" ({status})"
            refused = f"the endpoint does not accept the API key in {variable}{says}"
            missing = f"the endpoint wants an API key, and {variable} is not set{says}"
            return FatalError(
                refused if self._key else missing,
                status=401,
                remedy=address.key_remedy,
                options={"api_key_env": ...},
            )
        error = refusals.from_status(
            status, headers, message, model=address.model, api_key_env=address.api_key_env
        )
        if status == 500 and not self._key and not self._answered:  # LiteLLM's proxy without a database
            error.remedy = f"if it wants an API key: {address.key_remedy}"
            error.options = {"api_key_env": ...}
        return error

    async def _located(self, error: EndpointError, raw: bytes) -> EndpointError:
        """Use the list of models to explain an error that may be due to a wrong address."""
        message, address = refusals.message_in(raw), self.address
        lost = isinstance(error, FatalError) and (error.status == 404 or refusals.blames_model(message))
        if not lost or self._on_trial or address.api_version is not None:
            return error
        try:
            listed = await self.models()
            if isinstance(listed, tuple):
                if address.model in listed and refusals.blames_model(message):
                    return error
                return refusals.not_there(message, self.url, address.model, address.api, listed)
            below = await self.models("/v1") if listed == 404 else listed
        except EndpointError:
            return error
        if listed != 404 or below == 404:
            return error
        return FatalError(
            f"there is nothing at {self.url} (404)",
            status=404,
            remedy="the path of the base URL is probably incomplete: try {base_url}",
            options={"base_url": f"{address.base_url}/v1"},
        )

    async def _send(self, method: str, url: str, body: bytes | None = None) -> ServerResponse:
        if self._client is None:
            _load_client()
            from blindcal.endpoints.http_client import HttpClient  # slow to import

            self._client = HttpClient(self.address.base_url, self._headers, self.address.timeout)
        response = await self._client.send(method, url, body)
        return replace(response, body=self._redact(response.body))

    @property
    def _headers(self) -> dict[str, str]:
        if not self._key:
            return {"Content-Type": "application/json"}
        azure = self.address.api_version is not None
        key = {"api-key": self._key} if azure else {"Authorization": f"Bearer {self._key}"}
        return {"Content-Type": "application/json", **key}
