"""`swarm.<mesh>.fleet`: any one node tells the whole fleet's view, and whoever shows it asks.

A reader asks once, page by page, then hears changes: statuses, events, and the word of an embedded
server's supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import inf
from types import TracebackType
from typing import Any

from swarm.errors import (
    DecodeError,
    InvalidArgument,
    NoResponders,
    NotConnected,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SwarmError,
    Unavailable,
)
from swarm.fleet.bound_names import is_bound
from swarm.fleet.events import last_events
from swarm.fleet.pages import PAGE_BYTES, Question, page, read_page, read_question
from swarm.fleet.status_interval import SMALL_FLEET, STATUS_EVERY, status_every
from swarm.fleet.status_listener import ANSWER_WITHIN, request_statuses
from swarm.fleet.view import FleetView
from swarm.flow.bucket import TokenBucket
from swarm.gossip import PeerView
from swarm.link import Link, LinkMessage
from swarm.link.grants import Denial
from swarm.link.types import Carrier
from swarm.periodic import BEAT, beat
from swarm.subjects import Subjects, speaker
from swarm.tasks import told

log = logging.getLogger("swarm.fleet")

QUEUE = "fleet"  # the nodes' queue group: one of them answers
KEEP_PAGES = 0.2  # seconds for which a page is told again as it is; gossip is hardly newer
MOST_KEPT = 16  # pages
ANSWERS_PER_SECOND, ANSWERS_AT_ONCE = 50.0, 200.0  # of one node
REST = 0.1  # seconds after a refusal
# Seconds that each attempt waits for a page. A node that hangs is still a member of the queue group
# and gets a part of the questions: several short attempts find another one.
PAGE_TIMEOUTS = (0.3, 0.3, 0.3, 0.5, 1.0, 1.0)
MOST_PAGES = 100
ASK_EVERY = 30.0  # seconds; events that were lost are made good by it
TEND_EVERY = 5 * BEAT  # seconds
LISTEN = 0.5  # seconds, where it is not known how many nodes there are
SPOKEN_WITHIN = 1.3  # seconds; by then every node has said its status
LOOK_EVERY = 0.25  # seconds, for what time alone brings about
TIMES_ASKED = 2  # until a node that does not speak is silent
YOUNG = 5.0  # seconds of a node's life in which it may not have heard of all others
LARGEST_SERVER_STATE, MOST_SERVERS = 64 << 10, 16  # bytes, servers


class FleetAnswers:
    """Answers for the whole fleet, as one of its nodes: `start()`, then `stop()`.

    view(): what this node's gossip knows.
    """

    def __init__(
        self, link: Link, subjects: Subjects, node: str, view: Callable[[], Mapping[str, PeerView]]
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._node = node
        self._view = view
        self._bucket = TokenBucket(ANSWERS_PER_SECOND, ANSWERS_AT_ONCE)
        self._kept: dict[Question, tuple[float, bytes]] = {}
        self._sid = 0

    def start(self) -> None:
        """Answer from now on."""
        self._sid = self._link.subscribe(self._subjects.fleet, self._asked, QUEUE)

    def stop(self) -> None:
        """Let the other nodes answer."""
        if self._sid:
            self._link.unsubscribe(self._sid)
            self._sid = 0

    def _asked(self, message: LinkMessage) -> None:
        if not message.reply:
            return
        now = time.monotonic()
        try:
            if not self._bucket.take(now):
                raise ResourceExhausted("the fleet's view is asked for too often", REST)
            answer = self._page(read_question(message.data), now)
        except (InvalidArgument, ResourceExhausted) as error:
            answer = json.dumps({"error": str(error), "status": error.status}).encode()
        with contextlib.suppress(SwarmError):  # the reader asks again
            self._link.publish(message.reply, answer)

    def _page(self, question: Question, now: float) -> bytes:
        kept = self._kept.get(question)
        if kept is not None and now - kept[0] < KEEP_PAGES:
            return kept[1]
        if len(self._kept) >= MOST_KEPT:
            self._kept.clear()
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        most = min(PAGE_BYTES, self._link.max_payload // 2)
        found = page(question, self._view(), self._subjects.mesh, self._node, at, most)
        answer = json.dumps(found).encode()
        self._kept[question] = now, answer
        return answer


async def ask_fleet(
    link: Carrier, subjects: Subjects, take: Callable[[Mapping[str, Any]], None]
) -> bool:
    """Ask for the whole view; `take(page)` gets each page. False where no node answers, or what
    answers is no view. Raises `PermissionDenied`, `NotConnected`."""
    after = ""
    for _ in range(MOST_PAGES):
        found = await _ask_page(link, subjects, Question(after))
        if found is None:
            return False
        take(found)
        following = found["next"]
        if following is None:
            return True
        if following <= after:  # a node that gives wrong pages must not keep the reader asking
            return False
        after = following
    return False


async def _ask_page(link: Carrier, subjects: Subjects, question: Question) -> dict[str, Any] | None:
    """One page, of whichever node answers; one that has just died, or hangs, does not."""
    for timeout in PAGE_TIMEOUTS:
        try:
            message = await link.request(subjects.fleet, question.encoded(), timeout)
            return read_page(message.data)
        except NoResponders:
            return None
        except (TimeoutError, DecodeError, InvalidArgument) as error:
            log.info("no view of the fleet: %r", error)
            await asyncio.sleep(REST)
    return None


def speaks_seldom(view: FleetView, now: float) -> bool:
    """Whether this fleet is so large that its nodes publish their statuses less than once a second.
    A new reader then asks for them."""
    return status_every(len(view.living(now))) > STATUS_EVERY


class FleetWatch:
    """Keeps a `FleetView` current: `async with FleetWatch(mesh.link, mesh.subjects) as watch:`.

    Inside, `watch.view` has what the fleet told at once; statuses and events change it. servers:
    the last words of embedded servers' supervisors, by the server's URL. events: how many past
    events are read. Entering raises `PermissionDenied` where this user may not hear statuses.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        view: FleetView | None = None,
        events: int = 200,
    ) -> None:
        self.view = FleetView() if view is None else view
        self.servers: dict[str, dict[str, Any]] = {}
        self.answered = False  # whether a node told the view
        self._link = link
        self._subjects = subjects
        self._events = events
        self._asked_all = 0.0  # when a large fleet was asked to speak
        self._sids: list[int] = []
        self._task: asyncio.Task[None] | None = None
        self._ask = asyncio.Event()
        self._news = asyncio.Event()

    async def __aenter__(self) -> FleetWatch:
        subjects, link = self._subjects, self._link
        if not link.grants.may_subscribe(subjects.status_all):
            raise Denial(False, subjects.status_all).error()
        self._sids.append(link.subscribe(subjects.status_all, self._status))
        self._sids.append(link.subscribe(subjects.server, self._server))
        if link.grants.may_subscribe(subjects.events_all):
            self._sids.append(link.subscribe(subjects.events_all, self._event))
        link.on_up.append(self._ask.set)
        try:
            await self._read_all()
            self._ask_a_large_fleet()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        self._task = asyncio.create_task(self._tend(), name="fleet watch")
        self._task.add_done_callback(told)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._link.on_up.remove(self._ask.set)
        for sid in self._sids:
            self._link.unsubscribe(sid)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, holds: Callable[[FleetView, float], bool], timeout: float) -> bool:
        """Wait until `holds(view, now)`, looked at with each message and each `LOOK_EVERY`; False
        after `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not holds(self.view, time.monotonic()):
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY):
                            await self._news.wait()
                return True
        return False

    def request_statuses(self, within: float = ANSWER_WITHIN) -> None:
        """Have every node say its status: see `status_listener.request_statuses`."""
        request_statuses(self._link, self._subjects, within)

    async def hear_all(self, at_least: float = 0.0) -> None:
        """Have the nodes say their statuses, and wait until each one has that counts as living.

        Who that is the page of one node tells, and the statuses that come: a node that began a
        moment ago, or that hears late, knows too few or some that have ended. A node that stays
        silent is asked twice, and is `silent` then, whatever the others believe. Takes a moment in
        a small fleet, at most `LISTEN` where all who spoke have just begun, about a second in a
        large one; twice that where a node is silent. at_least: seconds to listen in any case, for
        whoever misses a node: one that is new may be known to no other.
        """
        if not self.answered:
            self.request_statuses(LISTEN / 2)
            await asyncio.sleep(max(at_least, LISTEN))
            return
        large = speaks_seldom(self.view, time.monotonic())
        since = self._asked_all if large else time.monotonic()
        for _ in range(TIMES_ASKED):
            if not large:  # it was asked at the beginning
                small = len(self.view.nodes) <= SMALL_FLEET
                self.request_statuses(0.0 if small else ANSWER_WITHIN)
            if await self.until(
                lambda view, now: all_spoke(view, since, now, at_least), at_least + SPOKEN_WITHIN
            ):
                return
        self.view.did_not_speak(since, time.monotonic())

    def _ask_a_large_fleet(self) -> None:
        if speaks_seldom(self.view, time.monotonic()):
            self._asked_all = time.monotonic()
            self.request_statuses()

    async def _read_all(self) -> None:
        """Ask for the view and the past events; where nobody answers, statuses alone tell."""

        def take(page: Mapping[str, Any]) -> None:
            self.view.take_page(page, time.monotonic())
            self._news.set()

        self.view.bound = is_bound(self._link.grants, self._subjects)
        try:
            if self._link.grants.may_publish(self._subjects.fleet):
                self.answered = await ask_fleet(self._link, self._subjects, take)
            past = await last_events(self._link, self._subjects, self._events)
        except (NotConnected, PermissionDenied) as error:
            log.info("no view of the fleet: %s", error)
            return
        if past:
            self.view.take_past(past, time.monotonic())

    async def _tend(self) -> None:
        asked = time.monotonic()
        while True:
            await beat(TEND_EVERY)
            now = time.monotonic()
            self.view.tend(now)
            connected = self._ask.is_set()  # since the last look
            if connected or now - asked > ASK_EVERY:
                self._ask.clear()
                asked = now
                with contextlib.suppress(SwarmError):  # it is tried again in a while
                    await self._read_all()
                if connected:
                    self._ask_a_large_fleet()

    def _status(self, message: LinkMessage) -> None:
        if speaker(message.subject, message.headers):
            self.view.take_status(message.subject, message.data, time.monotonic())
            self._news.set()

    def _event(self, message: LinkMessage) -> None:
        self.view.take_event(message.subject, message.data, time.monotonic())
        self._news.set()

    def _server(self, message: LinkMessage) -> None:
        if len(message.data) > LARGEST_SERVER_STATE:
            return
        with contextlib.suppress(ValueError, RecursionError):  # a foreign message: nothing to show
            document = json.loads(bytes(message.data))
            url = document.get("url") if isinstance(document, dict) else None
            if isinstance(url, str) and (url in self.servers or len(self.servers) < MOST_SERVERS):
                self.servers[url] = document
                self._news.set()


def all_spoke(view: FleetView, since: float, now: float, at_least: float = 0.0) -> bool:
    """Whether all nodes have said their statuses since they were asked, as far as those that spoke
    know. since, now: seconds, of the clock of the view. at_least: seconds between the two."""
    living = view.living(now)
    if not all(node.spoke(since) for node in living):
        return False
    known = [_known_living(node.status) for node in living]
    if max(known, default=0) > len(living):
        return False
    are_young = all(node.status.get("uptime_s", inf) < YOUNG for node in living)
    return now - since >= max(at_least, LISTEN if are_young else 0.0)


def _known_living(status: Mapping[str, Any]) -> int:
    """The living nodes that a node's gossip knows, itself among them."""
    return int(status.get("gossip", {}).get("peers", {}).get("alive", 0))


ANSWER_TIMEOUT = 2.0  # seconds


async def drain(link: Link, subjects: Subjects, node: str) -> None:
    """Tell a node to drain; returns when it has said that it does. Raises `NotFound` where it does
    not listen, `Unavailable` where it does not answer, `PermissionDenied`, `NotConnected`."""
    try:
        message = await link.request(subjects.drain(node), b"", ANSWER_TIMEOUT)
    except NoResponders:
        raise NotFound(f"no node {node!r} listens: `swarm status` shows those that do") from None
    except TimeoutError:
        raise Unavailable(f"node {node!r} does not answer: end its process on its host") from None
    try:
        said = json.loads(bytes(message.data))["state"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = None
    if said != "draining":
        raise Unavailable(f"node {node!r} did not say that it drains")
