"""How many messages a lane may work on or have asked for: its credit. Pure."""

from __future__ import annotations

TUNE_EVERY = 0.1  # seconds
# Seconds of traffic to ask for in advance. A round trip takes a few milliseconds; with more in
# advance messages come in bursts (measured: a quarter less CPU for each of 2000 requests a second).
SECONDS_AHEAD = 0.03
FUSED_UP_TO = 4  # messages of credit up to which each ack also asks for the next message
# Seconds of runs, and messages, that a node asks for beside its credit while some are to pass
# others: in the lane nobody is passed. It has to have in hand what the requesters' gates let in
# (`swarm.requests.gate`). A slow node asks for few, which a faster one could have had.
PASSING_SECONDS, MOST_PASSING = 0.2, 24


class Credit:
    """Follows the rate of messages between two bounds.

    The credit is the bound on a node's own queue, and on the number of messages that a hung node
    can hold back. `size` is its present value, in messages; `arrived_in_all` counts messages since
    the start. `fused`: whether an ack also asks for the next message, which is the cheapest while
    messages are few. Times are seconds of any monotonic clock.
    """

    __slots__ = (
        "_bound",
        "_least",
        "_most",
        "_most_at_once",
        "_tuned_at",
        "_tuned_count",
        "arrived_in_all",
        "beside",
        "fused",
        "size",
    )

    def __init__(self, least: int, most: int) -> None:
        """most: at most so many messages; below `least` it is taken as `least`."""
        self.size = self._least = least
        self.fused = least <= FUSED_UP_TO
        self._most = max(least, most)
        self._bound: int | None = None  # messages, by the link
        self._most_at_once = 0  # messages, since the last tuning
        self._tuned_at = 0.0
        self._tuned_count = 0  # messages that had come at the last tuning
        self.arrived_in_all = 0
        self.beside = 0
        """Messages beside `size`, of which some are to pass others."""

    def let_pass(self, run: float | None) -> None:
        """Messages are to pass others from now on; None: no more. run: usual seconds of a run."""
        self.beside = (
            0 if run is None else int(max(1, min(MOST_PASSING, PASSING_SECONDS / max(run, 1e-6))))
        )

    @property
    def in_all(self) -> int:
        """Messages to have asked for or in hand. Behind a slow link those on their way are passed
        by none either."""
        return self.size if self._bound is not None else self.size + self.beside

    def arrived(self, at_once: int) -> None:
        """A message came; `at_once` are at work or wait in the lane now, this one included."""
        self.arrived_in_all += 1
        if at_once > self._most_at_once:
            self._most_at_once = at_once

    def bound(self, messages: int | None) -> None:
        """From now on at most so many, even below the least; None for no such bound."""
        if messages == self._bound:
            return
        self._bound = messages
        self.size = self._least if messages is None else min(self.size, messages)
        self.fused = self.size <= FUSED_UP_TO

    def tune(self, now: float) -> None:
        """Follow the rate, at most once in `TUNE_EVERY` seconds.

        The credit becomes the number of messages of `SECONDS_AHEAD`, but not much more than there
        is at once: a hung node gets one message for each that it has asked for, and each of them
        costs its requester one ack_wait.
        """
        passed = now - self._tuned_at
        if passed < TUNE_EVERY:
            return
        rate = (self.arrived_in_all - self._tuned_count) / passed
        wanted = min(int(rate * SECONDS_AHEAD), 2 * self._most_at_once)
        self.size = min(self._most, max(self._least, wanted))
        if self._bound is not None:
            self.size = min(self.size, self._bound)
        self.fused = self.size <= FUSED_UP_TO
        self._tuned_at, self._tuned_count = now, self.arrived_in_all
        self._most_at_once = 0

    def is_half(self, messages: int) -> bool:
        """Whether `messages` are at least half of the credit: then one pull for them pays.

        The server parses one pull instead of sixteen, and delivers in bursts, each of which costs
        a node one read and one write.
        """
        return messages * 2 >= self.size
