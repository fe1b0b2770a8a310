"""A webhook: a small JSON body is posted when an alarm is raised for the first time.

What was told is noted in the folder of the watch, so that each alarm is told once, also over restarts. A body
that could not be delivered is posted again at the next look. Only if the process is killed between the reply
and the note is an alarm told twice; its ``id`` is then the same.

The body holds no prompt, answer or key. The URL may be a secret itself, as those of chat services are: it is
kept nowhere, and messages name its host only.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from yarl import URL

from blindcal.atomic_write import atomic_write
from blindcal.endpoints.http import is_loopback
from blindcal.errors import FileError, InputError
from blindcal.json_form import json_line, json_page
from blindcal.report.watch_page import WatchVerdict, raised_slices, verdicts
from blindcal.results.watch_result import WatchResult
from blindcal.telemetry.gauges import watch_name
from blindcal.text import encodable, printable
from blindcal.untrusted_json import JsonError, read_json

NOTIFIED_FILE = "notified.json"
FORMAT = 1
TIMEOUT = 10.0  # seconds for one body


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The body that is posted; docs/watch.md describes it.

    ``id`` is the same whenever the same alarm of the same watch is told. ``raised_at`` and ``since`` are as
    in `Alarm`, ``None`` for slices and for an endpoint whose facts changed. ``slices`` are the names of
    slices that are new since the last notification.
    """

    format: int = FORMAT
    event: str = "alarm"
    id: str
    alarm: str
    text: str
    advice: str
    model: str
    watch: str
    looked: str
    level: float | None
    log_evidence: float | None
    observations: int | None
    raised_at: int | None
    since: int | None
    first_seen: str | None
    slices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Notified:
    """What was told: the names of alarms, and of slices."""

    format: int = FORMAT
    alarms: tuple[str, ...] = ()
    slices: tuple[str, ...] = ()


def check_webhook(url: str) -> None:
    """Raise `InputError` unless ``url`` is a complete address; the message does not show it."""
    try:
        found = URL(url)
        complete = found.scheme in ("http", "https") and bool(found.host)
    except ValueError:
        complete = False
    if not complete:
        raise InputError(
            "{notify} takes a complete URL that begins with https:// or http:// (it is not shown here, as it "
            "may be a secret)",
            options={"notify": ...},
        )


def notify(result: WatchResult, url: str) -> tuple[str, ...]:
    """Post what is raised and was not told yet; returns the reasons why some of it could not be delivered."""
    folder = Path(result.folder)
    told = _read(folder)
    problems = []
    for body in notifications(result, told):
        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            problem = thread.submit(asyncio.run, _post(url, json_line(body))).result()
        if problem is not None:
            problems.append(f"the {body.alarm} alarm was not delivered to {_host(url)}: {problem}")
            continue
        told = Notified(
            alarms=told.alarms if body.alarm == "slices" else (*told.alarms, body.alarm),
            slices=(*told.slices, *body.slices),
        )
        with atomic_write(folder / NOTIFIED_FILE) as draft:
            draft.write_bytes(json_page(told))
    return tuple(problems)


def notifications(result: WatchResult, told: Notified | None = None) -> tuple[Notification, ...]:
    """The bodies for what is raised and was not told yet."""
    told = told or Notified()
    fresh = tuple(one.name for one in raised_slices(result) if one.name not in told.slices)
    return tuple(
        _body(result, verdict, fresh if verdict.name == "slices" else ())
        for verdict in verdicts(result)
        if verdict.raised and (fresh if verdict.name == "slices" else verdict.name not in told.alarms)
    )


def _body(result: WatchResult, verdict: WatchVerdict, slices: Sequence[str]) -> Notification:
    alarm = next((one for one in result.state.alarms if one.name == verdict.name), None)
    about = (result.started, result.stream, result.model, verdict.name, *slices)
    watch, model = watch_name(result), printable(result.model, 200)
    return Notification(
        id=hashlib.blake2b("\0".join(map(encodable, about)).encode(), digest_size=12).hexdigest(),
        alarm=verdict.name,
        text=f"blindcal: {verdict.name} alarm of {watch} ({model}). {verdict.sentence}",
        advice=verdict.advice or "",
        model=model,
        watch=watch,
        looked=result.looked,
        level=None if alarm is None else alarm.level,
        log_evidence=None if alarm is None else alarm.log_evidence,
        observations=None if alarm is None else alarm.observations,
        raised_at=None if alarm is None else alarm.raised_at,
        since=None if alarm is None else alarm.since,
        first_seen=None if alarm is None else result.first_seen.get(alarm.name),
        slices=tuple(slices),
    )


async def _post(url: str, body: bytes) -> str | None:
    """Post a body; returns why it was not delivered, if it was not."""
    import aiohttp  # slow to import

    # proxies as the environment names them, but not for this machine itself
    outside = not is_loopback(URL(url).host or "")
    try:
        async with (
            aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(TIMEOUT),
                headers={"Content-Type": "application/json", "User-Agent": "blindcal"},
                trust_env=outside,
            ) as session,
            session.post(url, data=body, allow_redirects=False) as response,
        ):
            return None if 200 <= response.status < 300 else f"it answered {response.status}"
    except TimeoutError:
        return f"no answer within {TIMEOUT:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # the text of an error may hold the URL
        return "no connection" if isinstance(error, aiohttp.ClientConnectionError) else type(error).__name__


def _host(url: str) -> str:
    return printable(URL(url).host or "", 80)


def _read(folder: Path) -> Notified:
    path = folder / NOTIFIED_FILE
    try:
        return read_json(path.read_bytes(), msgspec.json.Decoder(Notified))
    except FileNotFoundError:
        return Notified()
    except JsonError as error:
        raise InputError(
            f"{path}: does not say which alarms were told ({printable(str(error))})",
            remedy="remove the file; raised alarms are then told once more",
        ) from None
    except OSError as error:
        raise FileError.of(error, path) from None
