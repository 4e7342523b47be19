"""The forwarder of one site: it brings stored requests to the mesh, and their answers back.

It runs where the mesh is, at the hub, and keeps nothing of its own: after a cut, a restart, or in
another process it goes on behind the last answer that the site has stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

from swarm.errors import (
    ApiError,
    Internal,
    NotConnected,
    NotFound,
    ResourceExhausted,
    Status,
    SwarmError,
)
from swarm.flow.backoff import Backoff
from swarm.ids import ulid
from swarm.link import Link, LinkMessage, jetstream
from swarm.sites.forwarding import Forwarding, Publication
from swarm.sites.store import SiteStore, StoredRequest, StoreLimits
from swarm.sites.subjects import SiteSubjects
from swarm.sites.turn import ForwarderTurn
from swarm.subjects import TOKEN, Subjects, api, in_domain
from swarm.wire import oip
from swarm.wire.messages import Request, Result

log = logging.getLogger("swarm.sites")

NOBODY = "nobody"  # who is answered where a request came under no good name
NEWS_OF_REQUEST, NEWS_OF_ANSWER = b"request", b"answer"
WAITS_FOR = (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED)

Ask = Callable[[str, Request], Awaitable[Result]]  # (model, request) -> result; never raises


# How one forwarder works. All times are seconds.
WINDOW = 32  # requests in hand at a time
WINDOW_BYTES = 64 << 20  # bytes of requests in hand, from which no more are read
POLL_EVERY = 1.0  # time between two looks at a site that sends no news
RECONNECT_AFTER = 0.25  # time between tries to reach a site whose link is cut
# Time between two deletions of requests that are answered and answers that are read.
TIDY_EVERY = 2.0
# Time for which a request that the mesh cannot answer is asked again, before that is the answer.
PATIENCE = 600.0
PAUSE = 0.1  # first pause between those tries; each is twice as long as the last one
LONGEST_PAUSE = 5.0  # longest pause between those tries
LATE_TRIES = 3  # tries of a request whose budget is too short: more would hold up all behind it
HEADER_BYTES = 4096  # bytes of a message beside the answer


@dataclass(slots=True)
class ForwarderFigures:
    """Since the start. state: `forwarding`, `standing by`, or why it does neither."""

    state: str = "starting"
    answered: int = 0
    asked_again: int = 0
    waiting: int = 0
    dropped: int = 0


class Forwarder:
    """`run()` works until it is cancelled. ask: the mesh; a failure is a result."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        site: str,
        ask: Ask,
    ) -> None:
        self.site = site
        self.figures = ForwarderFigures()
        self._link = link
        self._subjects = SiteSubjects.of(subjects)
        self._store = SiteStore(link, subjects, site)
        self._ask = ask
        self._forwarding = Forwarding(WINDOW)
        self._turn = ForwarderTurn(time.monotonic())
        self._agents: dict[int, str] = {}  # by number
        self._bytes: dict[int, int] = {}  # of requests that are being computed
        self._jobs: dict[int, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._more = True  # whether the site may have requests that were not read
        self._forgotten = 0  # the number up to which answered requests were deleted
        self._marks: dict[str, int] = {}
        self._tidied = 0.0

    async def run(self) -> None:
        """Forward, and begin anew after each failure of the link."""
        sid = self._link.subscribe(self._subjects.news(self.site), self._on_news)
        try:
            while True:
                pause = RECONNECT_AFTER
                try:
                    await self._resume()
                    while True:
                        await self._tidy()
                        await self._step()
                except ResourceExhausted as error:  # until somebody reads answers
                    self._say(str(error))
                    pause = TIDY_EVERY
                except SwarmError as error:
                    self._say(str(error))
                except (KeyError, TypeError, ValueError) as error:
                    # Whoever is in the site's domain can answer in its server's place.
                    self._say(f"site {self.site!r} answers as no server does: {error!r}")
                await asyncio.sleep(pause)
        finally:
            self._link.unsubscribe(sid)
            await self._abandon(list(self._jobs))

    def status(self) -> dict[str, object]:
        """For the node's status document."""
        return asdict(self.figures) | {"in_hand": self._forwarding.in_hand}

    def _say(self, state: str) -> None:
        if state != self.figures.state:
            log.info("site %s: %s", self.site, state)
            self.figures.state = state

    def _on_news(self, message: LinkMessage) -> None:
        if bytes(message.data[:8]) != NEWS_OF_ANSWER:
            self._more = True
            self._wake.set()

    # --- in step with the site ----------------------------------------------------------

    async def _resume(self) -> None:
        try:
            progress = await self._store.progress()
        except NotFound:
            if not self._link.grants.may_publish(self._creates()):
                raise
            await self._store.prepare(StoreLimits())
            progress = await self._store.progress()
        passed = self._forwarding.resume(progress)
        await self._abandon(passed)
        if self._turn.mine:
            self.figures.answered += len(passed)  # the site has them; their acks were lost
        self.figures.dropped = progress.dropped
        self._more = True
        self._wake.set()

    def _creates(self) -> str:
        """The call that makes a stream of the site."""
        return in_domain(api("STREAM.CREATE", self._subjects.submitted_stream), self.site)

    async def _abandon(self, numbers: list[int]) -> None:
        tasks = [self._jobs.pop(number) for number in numbers if number in self._jobs]
        for number in numbers:
            self._agents.pop(number, None)
            self._bytes.pop(number, None)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _step(self) -> None:
        """One look at what is to be done. Raises `SwarmError` where the site is to be asked how far
        its work has come."""
        self._wake.clear()
        if not self._turn.mine:
            await self._stand_by()
            return
        self._say("forwarding")
        await self._read()
        await self._publish()
        if self._may_read:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_EVERY):
                await self._wake.wait()
                return
        self._more = True  # news of a client that sends none, or that a cut has swallowed

    async def _stand_by(self) -> None:
        self._say("standing by")
        await self._abandon(list(self._jobs))
        state = await self._store.state()
        self._turn.saw(state.tail, state.waiting > 0, time.monotonic())
        if self._turn.mine:
            self._forwarding = Forwarding(self._forwarding.window)
            await self._resume()
        else:
            await asyncio.sleep(POLL_EVERY)

    @property
    def _may_read(self) -> bool:
        """Whether there may be more requests, and room for them here."""
        has_credit = self._forwarding.credit > 0 and sum(self._bytes.values()) <= WINDOW_BYTES
        return self._more and has_credit

    async def _read(self) -> None:
        forwarding = self._forwarding
        if not self._may_read:
            return
        self._more = False  # from here on news say otherwise
        found = await self._store.requests(forwarding.next_number, forwarding.credit)
        self._more = self._more or len(found) > 0
        for stored in found:
            if forwarding.accept(stored.sequence):
                agent, _, model = stored.subject.rpartition(".")
                agent = agent.rpartition(".")[2]
                # The server takes names that ours does not: its answer goes where nobody reads it.
                agent = agent if TOKEN.fullmatch(agent) else NOBODY
                self._agents[stored.sequence] = agent
                self._bytes[stored.sequence] = len(stored.data)
                job = self._compute(stored, agent, model)
                self._jobs[stored.sequence] = asyncio.create_task(job)

    async def _publish(self) -> None:
        """Store the answers that may be stored now; all of them are under way together."""
        publications = self._forwarding.publications()
        if not publications:
            return
        outcomes = await asyncio.gather(
            *(self._store_answer(each) for each in publications), return_exceptions=True
        )
        for each, outcome in zip(publications, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                if _is_overtaken(outcome) and each is publications[0]:
                    self._turn.lost(time.monotonic())
                raise outcome
            self._forwarding.stored(each.number, outcome)
            self._agents.pop(each.number, None)
            self.figures.answered += 1
        self.figures.dropped = self._forwarding.progress.dropped
        with contextlib.suppress(NotConnected, ResourceExhausted):
            self._link.publish(self._subjects.news(self.site), NEWS_OF_ANSWER)

    async def _store_answer(self, each: Publication) -> int:
        return await self._store.answer(
            self._agents[each.number], each.number, each.after, each.dropped, [each.answer]
        )

    async def _tidy(self) -> None:
        """Delete what was answered, and what was read."""
        now = time.monotonic()
        if now - self._tidied < TIDY_EVERY:
            return
        self._tidied = now
        progress = self._forwarding.progress
        if progress.answered > self._forgotten:
            await self._store.forget_requests(progress.answered)
            self._forgotten = progress.answered
        await self._store.forget_read_answers(self._marks, progress.tail)
        self.figures.waiting = (await self._store.state()).waiting

    # --- one request ---------------------------------------------------------------------

    async def _compute(self, stored: StoredRequest, agent: str, model: str) -> None:
        as_json = oip.is_json(stored.data)
        request_id = stored.headers.get("Nats-Msg-Id", "") or ulid()

        def failed(error: SwarmError, node: str = "") -> bytes:
            result = Result(request_id, model, status=error.status, message=str(error), node=node)
            return _encoded(result, as_json)

        try:
            decode = oip.decode_request if as_json else Request.decode
            request = decode(stored.data)
            request.agent, request.id = agent, request.id or request_id
            result = await self._patiently(model, request)
            request_id = result.id
            answer = _encoded(result, as_json)
            if len(answer) + HEADER_BYTES > self._link.max_payload:
                text = f"the answer has {len(answer)} bytes, more than a server's max_payload"
                answer = failed(ResourceExhausted(text), result.node)
        except SwarmError as error:
            answer = failed(error)
        except Exception:
            # Without an answer, those of all later requests would wait for ever.
            log.exception("request %d of site %s failed", stored.sequence, self.site)
            answer = failed(Internal("a fault of the forwarder, which its log describes"))
        self._forwarding.finished(stored.sequence, answer)
        self._jobs.pop(stored.sequence, None)
        self._bytes.pop(stored.sequence, None)
        self._wake.set()

    async def _patiently(self, model: str, request: Request) -> Result:
        """Ask the mesh until it answers, or is out of patience."""
        began, late = time.monotonic(), 0
        pauses = Backoff(PAUSE, LONGEST_PAUSE)
        while True:
            result = await self._ask(model, request)
            if result.status not in WAITS_FOR:
                return result
            late += result.status is Status.DEADLINE_EXCEEDED
            pause = max(pauses.next(), min(result.retry_after, LONGEST_PAUSE))
            if late >= LATE_TRIES or time.monotonic() + pause - began > PATIENCE:
                return result
            self.figures.asked_again += 1
            await asyncio.sleep(pause)


def _is_overtaken(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.err_code in jetstream.WRONG_REVISIONS


def _encoded(result: Result, as_json: bool) -> bytes:
    return oip.encode_result(result) if as_json else b"".join(result.parts())
