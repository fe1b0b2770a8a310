"""How fast to ask: how many queries at once, how many per minute, and how long to pause after failures.

All classes are told what happened and say what to do. The time is passed in, so that tests need not wait.
None knows anything about the content of queries.

Failures come in bursts, because many queries are under way when a server begins to refuse. Requests that were
sent before the last burst was noticed belong to it, and a burst counts once.
"""

from __future__ import annotations

START = 32  # queries at once; a local model queues them, a service hardly notices
SETTLE = 0.1  # seconds; a rate measured over less is noise
COOLING = 1.0  # seconds between two cuts of the limit: where single requests fail, they fail all the time
LONGEST_PAUSE = 20.0  # seconds, unless the server asks for more
HARMLESS = 8  # failures in a row: a healthy service refuses a request now and then


class ConcurrencyControl:
    """How many queries to have under way, learnt from the answers.

    The limit doubles while this raises the rate of answers by a sixth or more (it ends after two windows
    without such a gain). Then it holds and occasionally tries half as many again. The rate decides and not
    the latency, because a server that batches takes longer per answer under load but answers more queries
    in total. A burst of refusals or time-outs halves the limit, which then grows by one at a time.
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
        """Record an answer at time ``now``."""
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
        """Record at time ``now`` that a request sent at ``sent`` failed, and lower the limit."""
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
    """When the next query may be sent, given limits on requests and tokens per minute.

    Queries are spread evenly, because a server that counts per second refuses a minute's worth at once.
    """

    def __init__(self, rpm: float | None = None, tpm: float | None = None) -> None:
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._request_free = self._tokens_free = float("-inf")

    def book(self, now: float, tokens: float) -> float:
        """Book the next slot for a query of about ``tokens`` tokens; returns its time."""
        start = max(now, self._request_free, self._tokens_free)
        self._request_free = start + self._per_request
        self._tokens_free = start + tokens * self._per_token
        return start

    def correct(self, tokens: float) -> None:
        """Correct for a query that took ``tokens`` more tokens (fewer if negative) than were booked."""
        self._tokens_free += tokens * self._per_token


class SharedPause:
    """Until when nothing is sent, because the server asked for it or answers nothing any more.

    Fewer than `HARMLESS` failures in a row pause nothing: the queries that failed wait on their own. Then
    every burst pauses all queries, twice as long each time, up to `LONGEST_PAUSE`; after the pause, one
    request at a time tries. The first answer ends this. ``bursts`` counts the pauses since the last answer.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._failures = 0
        self.bursts = 0
        self._refused = float("-inf")
        self.until = float("-inf")

    @property
    def trying(self) -> bool:
        """Whether only one request at a time is to be sent."""
        return self.bursts > 0

    def refused(self, now: float, sent: float, asked: float | None = None) -> None:
        """Record that a request sent at ``sent`` failed, and the seconds that the server asks to wait."""
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
        """Record an answer."""
        self._failures = self.bursts = 0
