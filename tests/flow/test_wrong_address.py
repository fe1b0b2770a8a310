"""A wrong base URL, model or key is named for what it is; the bodies are those of real servers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping

import pytest

from blindcal.endpoints import tokens
from blindcal.endpoints.address import SERVICES, Address, Api, Service, service_at
from blindcal.endpoints.http import HttpEndpoint
from blindcal.endpoints.query_format import DecisionQuestion
from blindcal.errors import EndpointError, FatalError, InputError, RetryableError, UnfitError
from blindcal.simulation.http_server import HttpRequest, HttpResponse
from paths import ROOT
from serving import CHAT_YES, Recorder, answering, ask, items

NOT_FOUND = {"detail": "Not Found"}  # FastAPI: vLLM, LiteLLM, transformers serve


def error(message: str, kind: str, param: str | None, code: object) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


VLLM_UNKNOWN = error(
    "The model `wrong` does not exist. Valid aliases: Qwen/Qwen2.5-7B-Instruct.",
    "NotFoundError",
    "model",
    404,
)
LITELLM_UNKNOWN = error(
    "/chat/completions: Invalid model name passed in model=wrong. Call `/v1/models` to view available models "
    "for your key.",
    "invalid_request_error",
    "model",
    "400",
)
LITELLM_NO_KEY = error("Authentication Error, No api key passed in.", "auth_error", "None", "401")
OPENAI_INVALID_URL = error("Invalid URL (POST /chat/completions)", "invalid_request_error", None, None)
Routes = Mapping[tuple[str, str], tuple[int, object]]


def serving(routes: Routes, missing: object = NOT_FOUND) -> Callable[[HttpRequest], HttpResponse]:
    """A server with these routes."""

    def handle(request: HttpRequest) -> HttpResponse:
        status, body = routes.get((request.method, request.path), (404, missing))
        return HttpResponse(json.dumps(body).encode(), status)

    return handle


def models(*names: str) -> dict[str, object]:
    return {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}


def vllm(model: str, *, served: str = "Qwen/Qwen2.5-7B-Instruct") -> Routes:
    """vLLM with one model, asked for another."""
    known = model == served
    return {
        ("GET", "/v1/models"): (200, models(served)),
        ("POST", "/v1/chat/completions"): (200, CHAT_YES) if known else (404, VLLM_UNKNOWN),
        ("POST", "/tokenize"): (200, {"tokens": [1]}) if known else (404, VLLM_UNKNOWN),
    }


def ask_vocabulary(
    handler: Callable[[HttpRequest], HttpResponse], model: str = "wrong", path: str = "/v1"
) -> tokens.Vocabulary:
    """The vocabulary of a server's model."""

    async def talk() -> tokens.Vocabulary:
        async with answering(handler) as url:
            address = Address(url.removesuffix("/v1") + path, model)
            async with HttpEndpoint(address, environ={}) as endpoint:
                return await tokens.find_vocabulary(endpoint, endpoint, items(1)[0])

    return asyncio.run(talk())


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1//", "/v1/chat/completions", "/v1/chat/completions/"])
def test_what_stands_after_a_base_url_is_dropped(path: str) -> None:
    """A slash or the path of completions after the base URL changes nothing, also for /tokenize."""
    assert Address(f"https://h:8000{path}", "m") == Address("https://h:8000/v1", "m")
    assert ask_vocabulary(serving(vllm("m", served="m")), "m", path).unsure == ""
    assert Address("https://h/v1/?region=eu", "m").base_url == "https://h/v1?region=eu"


@pytest.mark.parametrize(
    ("routes", "missing"),
    [
        (vllm("wrong"), NOT_FOUND),
        ({("GET", "/v1/models"): (401, LITELLM_NO_KEY)}, OPENAI_INVALID_URL),
    ],
    ids=["vllm", "openai"],
)
def test_a_base_url_without_v1(routes: Routes, missing: object) -> None:
    """If the models are listed below /v1, the error gives the base URL that works."""
    handler = serving({at: what for at, what in routes.items() if at[1] != "/tokenize"}, missing)
    with pytest.raises(
        FatalError, match=r"nothing at .*/chat/completions \(404\).*base_url='http.*/v1'"
    ) as said:
        ask_vocabulary(handler, path="")
    assert not isinstance(said.value, UnfitError)


@pytest.mark.parametrize("where", ["/tokenize", "/v1/chat/completions"])
def test_a_wrong_model_on_vllm(where: str) -> None:
    """The error names the model and those that are served, wherever it is noticed first."""
    routes = {at: what for at, what in vllm("wrong").items() if at[0] == "GET" or at[1] == where}
    with pytest.raises(FatalError, match=r"no model 'wrong': name one .* model=...: 'Qwen/Qwen2.5-7B-Inst"):
        ask_vocabulary(serving(routes))


LITELLM_NO_DATABASE = error("No connected db.", "no_db_connection", None, "400")
PINNED = {"detail": "Server is pinned to '/models/smollm2'; requested 'wrong'."}
SEVERAL = models(*(f"model-{k}" for k in range(20)), "wrong-1")


@pytest.mark.parametrize(
    ("listed", "reply", "kind", "says"),
    [
        ((200, SEVERAL), (400, LITELLM_UNKNOWN), FatalError, r"model 'wrong'.*: 'wrong-1', .* and 16 more$"),
        (
            (401, LITELLM_NO_KEY),
            (401, LITELLM_NO_KEY),
            FatalError,
            r"wants an API key, and OPENAI_API_KEY is not set \(401\).*api_key_env",
        ),
        # LiteLLM 1.106 without a database fails without a key, and refuses any other
        (
            (404, NOT_FOUND),
            (500, "Internal"),
            RetryableError,
            r"\(500\).*: if it wants an API key: export OPEN",
        ),
        (
            (404, NOT_FOUND),
            (400, LITELLM_NO_DATABASE),
            FatalError,
            r"KEY is not set \(400\): No connected db",
        ),
        ((500, "Internal"), (400, PINNED), FatalError, r"pinned to '/models/smollm2'; requested 'wrong'"),
    ],
    ids=["LiteLLM, model", "LiteLLM, no key", "LiteLLM, failure", "LiteLLM, key", "transformers serve"],
)
def test_other_servers(
    listed: tuple[int, object], reply: tuple[int, object], kind: type[EndpointError], says: str
) -> None:
    """A missing key or a wrong model is understood, although /tokenize is not offered either."""
    routes = {("GET", "/v1/models"): listed, ("POST", "/v1/chat/completions"): reply}
    with pytest.raises(kind, match=says):
        ask_vocabulary(serving(routes))


def test_a_key_that_is_not_accepted() -> None:
    """A key that is set and refused is told apart from one that is missing."""
    with pytest.raises(FatalError, match=r"does not accept the API key in MY_KEY \(401\).*api_key_env="):
        ask(Recorder(LITELLM_NO_KEY, 401), environ={"MY_KEY": "wrong-but-long"}, api_key_env="MY_KEY")


def test_the_wrong_api() -> None:
    """A model that is listed but has no such path may be asked by the other API."""
    routes = {("GET", "/v1/models"): (200, models("base"))}
    with pytest.raises(FatalError, match=r"lists model 'base', but has nothing at .*: try api='completions'"):
        ask_vocabulary(serving(routes), "base")


@pytest.mark.parametrize("api", ["decisions", "systemone"])
def test_the_wrong_decision_api(api: Api) -> None:
    """An address without the form that was named may speak the other, or be a chat."""
    routes = {("GET", "/v1/models"): (200, models("base"))}
    question = DecisionQuestion(("Yes", "No")).request(items(1)[0].messages, 0.0, 0.0)

    async def talk() -> None:
        async with answering(serving(routes)) as url, HttpEndpoint(Address(url, "base", api)) as endpoint:
            await endpoint.ask(question)

    with pytest.raises(FatalError, match=rf"nothing at .*/{api} .*: api='auto' finds out what it speaks"):
        asyncio.run(talk())


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_service_that_tells_no_ids(status: int) -> None:
    """Where everything else works, it is the ids that are missing, and a method without them can go on."""
    routes = {
        ("GET", "/v1/models"): (200, models("mine")),
        ("POST", "/v1/chat/completions"): (200, CHAT_YES),
        ("POST", "/tokenize"): (status, NOT_FOUND),
    }
    with pytest.raises(UnfitError, match=r"does not tell its token ids.*tokenizer=.*positive_ids="):
        ask_vocabulary(serving(routes), "mine")


@pytest.mark.parametrize(
    ("model", "routes", "warning"),
    [
        ("mine", {("GET", "/v1/models"): (200, models("mine"))}, "None"),
        ("other", {("GET", "/v1/models"): (200, models("mine"))}, "has no model 'other'; it lists 'mine'"),
        ("mine", {}, "None"),
    ],
)
def test_a_name_that_is_not_listed_is_mentioned(model: str, routes: Routes, warning: str) -> None:
    """llama.cpp answers under any name, so this is no error; without a list there is no remark."""

    async def talk() -> str | None:
        async with (
            answering(serving(routes)) as url,
            HttpEndpoint(Address(url, model), environ={}) as endpoint,
        ):
            return await endpoint.unlisted()

    assert warning in str(asyncio.run(talk()))


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_known_services(service: Service) -> None:
    """A missing key names the usual variable of a known service, which the docs list; others are unknown."""
    host = f"mine{service.host}" if service.host.startswith(".") else service.host
    address = Address(f"https://{host}/v1", "m", api_key_env="MY_KEY")
    assert service_at(address.base_url) is service
    message = f"MY_KEY is not set.*keys of {service.name} are usually in {service.key_variable}"
    with pytest.raises(InputError, match=message):
        address.check_key({})
    assert service_at(f"https://{host}.example.org/v1") is service_at("h") is service_at("http://[") is None
    page = (ROOT / "docs" / "providers.md").read_text()
    assert re.search(
        rf"\[{service.name}\].* `\*?{re.escape(service.host)}` \| `{service.key_variable}` \|$", page, re.M
    )
