"""How many queries to have under way and per minute, how long to pause, and how many tokens to expect.

The time is passed in, so that tests need not wait. Failures come in bursts, because many queries are under
way when a server begins to refuse; requests sent before a burst was noticed belong to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blindcal.errors import EndpointError
from blindcal.prices import CHARACTERS_A_TOKEN, Prices
from blindcal.records import Reply, Request, Usage
from blindcal.store.run_store import Store

START = 32  # queries at once; a local model queues them, a service hardly notices
SETTLE = 0.1  # seconds; a rate measured over less is noise
COOLING = 1.0  # seconds between two cuts of the limit, so that scattered failures do not add up
LONGEST_PAUSE = 20.0  # seconds, unless the server asks for more
HARMLESS = 8  # failures in a row: a healthy service refuses a request now and then


class ConcurrencyControl:
    """Learns how many queries to have under way.

    The limit doubles until two windows in a row raise the rate of answers by less than a sixth; then it holds
    and occasionally tries half as many again. Latency does not matter: a server that batches takes longer per
    answer under load but answers more in total. A burst of refusals or time-outs halves the limit, which then
    grows by one at a time.
    """

    def __init__(self, most: int) -> None:
        self.limit = min(most, START)
        self._most = most
        self._state = "double"
        self._before = self.limit
        self._rate = 0.0
        self._doubted = False
        self._windows = 0
        self._count = 0
        self._since: float | None = None
        self._refused = float("-inf")

    def answered(self, now: float) -> None:
        if self._since is None:
            self._since = now
        self._count += 1
        elapsed = now - self._since
        if self._count < self.limit or elapsed < SETTLE:
            return
        rate, self._count, self._since = self._count / elapsed, 0, now
        self._windows += 1
        if self._state == "double":
            self._after_doubling(rate)
        elif self._state == "add":
            self.limit = min(self._most, self.limit + 1)
        else:
            self._hold(rate)

    def refused(self, now: float, sent: float) -> None:
        """Lower the limit because a request sent at ``sent`` failed."""
        if sent <= self._refused or now < self._refused + COOLING:
            return
        self._refused = now
        self._state = "add"
        self.limit = max(1, self.limit // 2)
        self._count, self._since = 0, None

    def _after_doubling(self, rate: float) -> None:
        if rate > 1.17 * self._rate:
            self._before, self._rate, self._doubted = self.limit, rate, False
            self.limit = min(self._most, 2 * self.limit)
        elif not self._doubted:
            self._doubted = True
        else:
            self._state, self.limit = "hold", self._before
        if self.limit == self._before == self._most:
            self._state = "hold"

    def _hold(self, rate: float) -> None:
        if self.limit > self._before and rate < 1.1 * self._rate:
            self.limit = self._before
        else:
            self._before, self._rate = self.limit, rate
            if self._windows % 8 == 0:
                self.limit = min(self._most, self.limit + max(1, self.limit // 2))


class RateLimiter:
    """Spreads queries evenly, because a server that counts per second refuses a minute's worth at once."""

    def __init__(self, rpm: float | None = None, tpm: float | None = None) -> None:
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._request_free = self._tokens_free = float("-inf")

    def book(self, now: float, tokens: float) -> float:
        """Book the next slot for a query of about ``tokens`` tokens and return its time."""
        start = max(now, self._request_free, self._tokens_free)
        self._request_free = start + self._per_request
        self._tokens_free = start + tokens * self._per_token
        return start

    def correct(self, tokens: float) -> None:
        """Add ``tokens`` to the last booking (negative if it took fewer)."""
        self._tokens_free += tokens * self._per_token


class SharedPause:
    """Pauses all queries when the server asks for it or stops answering.

    Fewer than `HARMLESS` failures in a row pause nothing. After that, each burst doubles the pause, up to
    `LONGEST_PAUSE`, and then one request at a time is tried until one is answered. ``bursts`` counts the
    pauses since the last answer.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures = 0
        self.bursts = 0
        self._refused = float("-inf")
        self.until = float("-inf")

    @property
    def trying(self) -> bool:
        """Whether to send only one request at a time."""
        return self.bursts > 0

    def refused(self, now: float, sent: float, asked: float | None = None) -> None:
        """Record a failure; ``asked`` is the wait that the server asks for, in seconds."""
        if asked is not None:
            self.until = max(self.until, now + asked)
        self._failures += 1
        if self._failures < HARMLESS or sent <= self._refused:
            return
        self._refused = now
        pause = self._first * 2.0 ** min(self.bursts, 20)  # no overflow, however long it lasts
        self.until = max(self.until, now + min(LONGEST_PAUSE, pause))
        self.bursts += 1

    def answered(self) -> None:
        self._failures = self.bursts = 0


_WARY = 2.0  # factor on the expected tokens, for endpoints that count more tokens than a prompt has bytes
_AROUND = 8  # tokens that a chat format adds around each message, and around the whole


@dataclass(slots=True)
class TokenEstimator:
    """Bytes and tokens of the answered prompts; ``estimated`` if an endpoint did not report some."""

    store: Store | None = None
    answered: int = 0
    size: int = 0
    tokens: int = 0
    estimated: bool = False

    def learn(self, size: int, tokens: int) -> None:
        self.answered += 1
        self.size += size
        self.tokens += tokens

    def count(self, reply: Reply, request: Request) -> Reply:
        """Learn from a reply; estimate its tokens if it reports none."""
        size = bytes_of(request)
        if reply.prompt_tokens:
            self.learn(size, reply.prompt_tokens)
            return reply
        self.answered += 1
        prompt, completion, _ = self._estimate(request)
        return replace(reply, prompt_tokens=prompt, completion_tokens=completion)

    def bill(self, error: EndpointError, request: Request) -> None:
        """Estimate the tokens of an unusable reply that was billed but reports none."""
        if error.billed is not None and not error.billed[0]:
            error.billed = self._estimate(request)

    def _estimate(self, request: Request) -> tuple[int, int, int]:
        if not self.estimated:
            self.estimated = True
            if self.store is not None:
                self.store.set_note("tokens_estimated", True)
        prompt = max(1, round(self.expected(bytes_of(request))))
        return prompt * request.n, request.max_tokens * request.n, 0

    def expected(self, size: float) -> float:
        """Expected tokens of a prompt of ``size`` bytes."""
        return size * self.tokens / self.size if self.tokens and self.size else size / CHARACTERS_A_TOKEN

    def highest_cost(self, request: Request, prices: Prices) -> float:
        """The most that a request may cost; some endpoints bill the prompt once per answer."""
        size = bytes_of(request)
        mean = self.tokens / max(1, self.answered)  # some endpoints add their own prompt
        most = max(_WARY * self.expected(size), _WARY * mean, size + _AROUND * (1 + len(request.messages)))
        return prices.cost(
            Usage(
                queries=1,
                attempts=1,
                prompt_tokens=round(most) * request.n,
                completion_tokens=request.max_tokens * request.n,
            )
        )


def bytes_of(request: Request) -> int:
    """Size of a request's prompt in bytes."""
    return sum(
        len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        for text in (message.content for message in request.messages)
    )
