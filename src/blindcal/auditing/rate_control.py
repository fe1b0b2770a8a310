"""How fast to ask: how many questions at once, and how many a minute.

Both are told what happened and say what to do; the clock comes from outside, so that tests need not
wait. Neither knows anything about questions.
"""

from __future__ import annotations

START = 32  # questions at once; a local model queues them, a service hardly notices
SETTLE = 0.1  # seconds: a rate measured over less is noise
COOLING = 1.0  # seconds in which a burst of refusals counts as one


class ConcurrencyControl:
    """How many questions to have under way, learnt from what comes back.

    Doubles while doubling pays (the rate of answers grows by a sixth or more; a second window is asked
    before a "no" is believed), then holds and now and then tries half as much again. A server that
    batches answers more slowly under load yet more often, so the rate decides and not the delay of one
    answer. A refusal or a time-out halves it, and from there it grows by one at a time.
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
        self._cool = float("-inf")

    def answered(self, now: float) -> None:
        """An answer came at ``now``."""
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

    def refused(self, now: float) -> None:
        """The server refused or did not answer in time: ask less at once."""
        if now < self._cool:
            return
        self._cool = now + COOLING
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
    """When the next question may go, under limits of requests and tokens a minute and pauses asked for.

    Questions are spread evenly: a server that counts by the second refuses a minute's worth at once.
    """

    def __init__(self, rpm: float | None = None, tpm: float | None = None) -> None:
        self._per_request = 60.0 / rpm if rpm else 0.0
        self._per_token = 60.0 / tpm if tpm else 0.0
        self._free = float("-inf")
        self._resume = float("-inf")

    def book(self, now: float, tokens: float) -> float:
        """Take the next place for a question of about so many tokens; returns the seconds to wait for it."""
        start = max(now, self._free)
        self._free = start + max(self._per_request, tokens * self._per_token)
        return max(start, self._resume) - now

    def correct(self, tokens: float) -> None:
        """A question took so many tokens more (or fewer) than it was booked for."""
        self._free += tokens * self._per_token

    def pause(self, now: float, seconds: float) -> None:
        """Let nothing go for a while, because the server said so."""
        self._resume = max(self._resume, now + seconds)
