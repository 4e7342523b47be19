"""Which requests get a slot, which wait for one, and which are refused. Pure.

An agent has a share of the slots, and of the places of those that wait: whoever opens hundreds of
sessions waits for its own, and others find slots. Of those that wait, the agent that holds the
fewest slots is the next. All requests without an agent's name are one agent's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from swarm.errors import ResourceExhausted
from swarm.language.request import GenerateRequest

AGAIN_AFTER = 1.0  # seconds after which a client that found no free slot may ask again


@dataclass(frozen=True, slots=True)
class Shares:
    """share: of the slots, and of the places to wait, that one agent has at most; one at least.
    waiting: places, for each slot. wait: seconds that a request waits at most."""

    share: float = 0.5
    waiting: int = 2
    wait: float = 0.5


USUAL_SHARES = Shares()


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request, as its client wrote it. until: when it has waited long enough."""

    request: GenerateRequest
    reply: str
    until: float = 0.0


class SlotAdmission:
    """Of one node of stage 1. A slot is held from `take` on, until `free`."""

    def __init__(self, slots: int, shares: Shares) -> None:
        self._slots = slots
        self._shares = shares
        self._most = max(1, int(shares.share * slots))
        self._places = max(1, shares.waiting * slots)
        self._most_waiting = max(1, int(shares.share * self._places))
        self._held: dict[str, str] = {}  # agents by session
        self._waiting: dict[str, WaitingRequest] = {}  # by session, in the order in which they came
        self._holds: Counter[str] = Counter()  # slots by agent
        self._waits: Counter[str] = Counter()  # places by agent

    def __contains__(self, session: str) -> bool:
        """Whether a session holds a slot."""
        return session in self._held

    @property
    def held(self) -> int:
        """Slots that are held."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def may_hold(self, agent: str) -> bool:
        """Whether an agent has a slot of its share left."""
        return self._holds[agent] < self._most

    def hold(self, session: str, agent: str) -> None:
        """A session has a slot from now on."""
        self._held[session] = agent
        self._holds[agent] += 1

    def free(self, session: str) -> None:
        """A session's slot is free, if it had one."""
        agent = self._held.pop(session, None)
        if agent is not None:
            _less(self._holds, agent)

    def is_full(self, request: GenerateRequest) -> bool:
        """Whether a request finds no slot of its agent's share and no place to wait."""
        agent = request.agent
        return (
            not self.may_hold(agent)
            and request.session not in self._waiting
            and (self._waits[agent] >= self._most_waiting or len(self._waiting) >= self._places)
        )

    def wait(
        self, request: GenerateRequest, reply: str, now: float, elsewhere: bool = False
    ) -> None:
        """A request waits; one that waits already is the newer one from now on, in its place.
        elsewhere: another node may have a slot: it does not wait long for one here. Raises
        `ResourceExhausted` where there is no place."""
        agent, before = request.agent, self._waiting.get(request.session)
        if before is not None:
            self._waiting[request.session] = WaitingRequest(request, reply, before.until)
            return
        if self._waits[agent] >= self._most_waiting or len(self._waiting) >= self._places:
            raise self.refusal(agent)
        self._waits[agent] += 1
        self._waiting[request.session] = WaitingRequest(
            request, reply, now if elsewhere else now + self._shares.wait
        )

    def next(self, free: int) -> Iterator[WaitingRequest]:
        """Requests that get a slot now, of `free` ones: each is held once it is drawn."""
        while free > 0 and self._waiting:
            fit = [each for each in self._waiting.values() if self.may_hold(each.request.agent)]
            if not fit:
                return
            found = min(fit, key=lambda each: self._holds[each.request.agent])
            self._gone(found)
            self.hold(found.request.session, found.request.agent)
            free -= 1
            yield found

    def late(self, now: float) -> list[WaitingRequest]:
        """Requests that have waited long enough. They wait no more."""
        return self._leave([each for each in self._waiting.values() if each.until <= now])

    def leave(self) -> list[WaitingRequest]:
        """All that wait. They wait no more."""
        return self._leave(list(self._waiting.values()))

    def forget(self, session: str) -> None:
        """Nobody waits for a session any more."""
        if (found := self._waiting.get(session)) is not None:
            self._gone(found)

    def refusal(self, agent: str) -> ResourceExhausted:
        """Why a request of an agent gets no slot."""
        if self.may_hold(agent):
            text = f"all {self._slots} slots are taken"
        else:
            text = f"agent {agent!r} has {self._most} of {self._slots} slots, its share"
        return ResourceExhausted(f"{text}: ask again when an answer has ended", AGAIN_AFTER)

    def _leave(self, leaving: list[WaitingRequest]) -> list[WaitingRequest]:
        for each in leaving:
            self._gone(each)
        return leaving

    def _gone(self, asked: WaitingRequest) -> None:
        del self._waiting[asked.request.session]
        _less(self._waits, asked.request.agent)


def _less(counter: Counter[str], agent: str) -> None:
    counter[agent] -= 1
    if not counter[agent]:
        del counter[agent]
