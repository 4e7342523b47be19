"""What a client does at a site: submit requests that can wait, and read their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from swarm.errors import InvalidArgument, LinkEnded, NotConnected, ResourceExhausted, Unavailable
from swarm.link import Link, LinkMessage
from swarm.sites.forwarder import NEWS_OF_REQUEST
from swarm.sites.store import DROPPED, NUMBER, SiteStore, StoredRequest
from swarm.sites.subjects import SiteSubjects
from swarm.subjects import Subjects
from swarm.wire import oip
from swarm.wire.messages import Request, Result

LONGEST_ID = 128  # characters of a request's id
BATCH = 64  # answers of one read
RETRY_AFTER = 0.25  # seconds, while the site is away
LOOK_EVERY = 1.0  # seconds between looks without news

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ticket:
    """A request that a site has stored. number: counts the site's requests; the answers to an agent
    come in the order of their numbers."""

    site: str
    agent: str
    number: int
    id: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a submitted request. number: as in its ticket. dropped: requests of all agents
    that the site has dropped before this one, because its store was full; their tickets get no
    answer. result: a failure is a result too."""

    number: int
    dropped: int
    result: Result


async def submit(link: Link, subjects: Subjects, site: str, model: str, request: Request) -> Ticket:
    """See `swarm.Mesh.submit`. The request names its agent."""
    agent, id_ = request.agent, request.id
    if not agent:
        raise InvalidArgument(
            "who submits must have a name, by which the answers are read: "
            "swarm.connect(agent=…), submit(agent=…) or --agent NAME"
        )
    if not (id_.isascii() and id_.isprintable() and len(id_) <= LONGEST_ID):
        raise InvalidArgument(
            f"a request's id is at most {LONGEST_ID} printable characters of ASCII"
        )
    name, _, request.version = model.partition("@")
    subjects = SiteSubjects.of(subjects)
    subject = subjects.submit(site, agent, name)
    store = SiteStore(link, subjects, site)
    parts = request.parts()
    # Agents choose their ids each for itself: two of them may choose the same one. Who guesses one,
    # and stores something else under it, does not keep this request from being stored.
    digest = sha256(subject.encode())
    for part in parts:
        digest.update(part)
    number = await store.submit(subject, parts, f"{agent}/{request.id}/{digest.hexdigest()[:32]}")
    with contextlib.suppress(NotConnected, ResourceExhausted):  # the forwarder looks by itself too
        link.publish(subjects.news(site), NEWS_OF_REQUEST)
    return Ticket(site, agent, number, request.id)


class Results:
    """The answers to an agent, in order, by `async for`; see `swarm.Mesh.results`."""

    def __init__(
        self, link: Link, subjects: Subjects, site: str, agent: str, *, follow: bool = True
    ) -> None:
        self._link = link
        self._news = SiteSubjects.of(subjects).news(site)
        self._agent = agent
        self._follow = follow
        self._store = SiteStore(link, subjects, site)
        self._found: deque[StoredRequest] = deque()
        self._read: int | None = None  # the sequence of the last answer that counts as read
        self._given = 0  # the sequence of the last answer that the caller has

    def __aiter__(self) -> Results:
        return self

    async def __anext__(self) -> Answer:
        """Raises `NotFound` where the site has no store, and, unless it follows, `Unavailable`."""
        await self.read()
        if not self._found:
            await self._fetch()
        while not self._found:
            if not self._follow:
                raise StopAsyncIteration
            await self._until_news()
        stored = self._found.popleft()
        self._given = stored.sequence
        decode = oip.decode_result if oip.is_json(stored.data) else Result.decode
        return Answer(stored.number(NUMBER), stored.number(DROPPED), decode(stored.data))

    async def read(self) -> None:
        """The last answer counts as read, before the loop asks for the next one."""
        if self._read is None:
            self._read = await self._reached(lambda: self._store.read_by(self._agent))
            self._given = self._given or self._read
        if self._given > self._read:
            await self._reached(lambda: self._store.mark_read(self._agent, self._given))
            self._read = self._given

    async def _fetch(self) -> None:
        least = self._given + 1
        self._found += await self._reached(lambda: self._store.answers(self._agent, least, BATCH))

    async def _until_news(self) -> None:
        """Wait until the site may have stored an answer, and look."""
        news = asyncio.Event()

        def on_news(message: LinkMessage) -> None:
            if bytes(message.data[:8]) != NEWS_OF_REQUEST:
                news.set()

        sid = self._link.subscribe(self._news, on_news)
        try:
            await self._fetch()  # what came before the subscription
            if not self._found:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY):
                        await news.wait()
                await self._fetch()
        finally:
            self._link.unsubscribe(sid)

    async def _reached(self, call: Callable[[], Awaitable[T]]) -> T:
        """As `call`; who follows waits until the site answers."""
        while True:
            try:
                return await call()
            except LinkEnded:
                raise
            except Unavailable:
                if not self._follow:
                    raise
                await asyncio.sleep(RETRY_AFTER)
