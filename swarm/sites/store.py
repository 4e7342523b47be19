"""The streams of one site, in its own JetStream domain: requests, answers, how far they were read.

They are read by direct gets, in the order of their sequences, and have no consumers: a reader knows
its own place, so a cut has nothing to forget, and no ack can go astray between two domains.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import Any

from swarm.clock import parse_rfc3339
from swarm.errors import (
    ApiError,
    InvalidArgument,
    NoResponders,
    NotConnected,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SwarmError,
    Unavailable,
)
from swarm.link import Link, LinkMessage, jetstream
from swarm.sites.forwarding import SiteProgress, beginning
from swarm.sites.subjects import SiteSubjects
from swarm.subjects import Subjects, api, in_domain, token, without_domain
from swarm.wire.tensors import Part

REFUSE, DROP_OLDEST = "refuse", "drop-oldest"  # what a full store does with one more request
MOST_BYTES = 1 << 30  # of requests, and of answers, unless the operator says otherwise
KEPT_FOR = 7 * 24 * 3600.0  # seconds: answers that nobody reads
DUPLICATES = 120.0  # seconds in which a request that is submitted twice is stored once
TIMEOUT = 2.0  # seconds without an answer of the site
MOST_DIGITS = 18  # of a sequence
BATCH_BYTES = 8 << 20  # of one read
NS = 1_000_000_000
NUMBER, DROPPED = "Swarm-Number", "Swarm-Dropped"
_HEADER = re.compile(rb"(?m)^([A-Za-z-]+): ?([^\r\n]*)")
END_OF_BATCH, NO_MESSAGES = b"204", (b"404", b"408")


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """max_bytes: of requests that wait, and as many of answers. when_full: `refuse` the newest
    request, or `drop-oldest`. keep: seconds after which an answer is deleted, read or not."""

    max_bytes: int = MOST_BYTES
    when_full: str = REFUSE
    keep: float = KEPT_FOR

    def __post_init__(self) -> None:
        if self.when_full not in (REFUSE, DROP_OLDEST):
            raise InvalidArgument(f"when full: {self.when_full!r}; it is {REFUSE} or {DROP_OLDEST}")
        if self.max_bytes < 1 << 16 or not self.keep >= 60:
            raise InvalidArgument("a site keeps at least 64 KiB, for at least a minute")


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """A stored message: its sequence, subject and headers."""

    sequence: int
    subject: str
    headers: dict[str, str]
    data: bytes | memoryview

    def number(self, name: str) -> int:
        """A header that is a number; 0 where there is none."""
        text = self.headers.get(name, "")[:MOST_DIGITS]
        return int(text) if text.isascii() and text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class SiteState:
    """What a site holds. Bytes and messages of requests that wait, and of answers that are not
    deleted yet; oldest: seconds that the oldest request has waited, by the site's own clock."""

    waiting: int
    waiting_bytes: int
    most_bytes: int
    when_full: str
    first: int
    last: int
    oldest: float
    answers: int
    answers_bytes: int
    tail: int


_OF_LIMITS = {"max_bytes", "max_age", "discard", "duplicate_window"}  # settings of its streams


class _Silent(Unavailable):
    """No answer came, though somebody listens."""


class SiteStore:
    """site: its name, which is that of its JetStream domain.

    All methods raise `Unavailable` where the site cannot be reached, `NotFound` where it stores
    nothing yet, and `ApiError` for another refusal of its server.
    """

    def __init__(self, link: Link, subjects: Subjects, site: str) -> None:
        self.site = token(site, "site")
        self._link = link
        self._subjects = SiteSubjects.of(subjects)

    async def prepare(self, limits: StoreLimits, change: bool = False) -> None:
        """Make the site's streams, unless they exist. change: give them these limits."""
        for config in self._configs(limits):
            try:
                await self._call("STREAM.CREATE", config["name"], config)
            except ApiError as error:
                if error.err_code != jetstream.STREAM_EXISTS_DIFFERENT:
                    raise
                if change:
                    limited = {name: config[name] for name in _OF_LIMITS & config.keys()}
                    found = (await self._call("STREAM.INFO", config["name"]))["config"]
                    wanted = jetstream.changed(found, limited)
                    await self._call("STREAM.UPDATE", config["name"], wanted)

    async def limits(self) -> StoreLimits:
        """Those that the site's streams have."""
        subjects = self._subjects
        requests = (await self._call("STREAM.INFO", subjects.submitted_stream))["config"]
        answers = (await self._call("STREAM.INFO", subjects.answers_stream))["config"]
        return StoreLimits(
            int(requests["max_bytes"]),
            REFUSE if requests["discard"] == "new" else DROP_OLDEST,
            int(answers["max_age"]) / NS,
        )

    def _configs(self, limits: StoreLimits) -> list[dict[str, Any]]:
        subjects, site = self._subjects, self.site
        common = {"storage": "file", "allow_direct": True}
        return [
            {
                "name": subjects.submitted_stream,
                "subjects": [subjects.submit_all(site)],
                "max_bytes": limits.max_bytes,
                "discard": "new" if limits.when_full == REFUSE else "old",
                "duplicate_window": int(DUPLICATES * NS),
                **common,
            },
            {
                "name": subjects.answers_stream,
                "subjects": [subjects.answers_all(site)],
                "max_bytes": limits.max_bytes,
                "discard": "new",  # the forwarder waits, and with it the requests
                "max_age": int(limits.keep * NS),
                "duplicate_window": int(min(DUPLICATES, limits.keep) * NS),
                **common,
            },
            {
                "name": subjects.read_stream,
                "subjects": [subjects.read_all(site)],
                "max_msgs_per_subject": 1,
                **common,
            },
        ]

    async def remove(self) -> None:
        """Delete the site's streams, with all that is in them."""
        subjects = self._subjects
        for name in (subjects.submitted_stream, subjects.answers_stream, subjects.read_stream):
            await self._call("STREAM.DELETE", name)

    async def state(self) -> SiteState:
        """What the site holds."""
        subjects = self._subjects
        requests = await self._call("STREAM.INFO", subjects.submitted_stream)
        answers = await self._call("STREAM.INFO", subjects.answers_stream)
        state, config = requests["state"], requests["config"]
        waiting = int(state["messages"])
        return SiteState(
            waiting=waiting,
            waiting_bytes=int(state["bytes"]),
            most_bytes=int(config["max_bytes"]),
            when_full=REFUSE if config["discard"] == "new" else DROP_OLDEST,
            first=max(1, int(state["first_seq"])),
            last=int(state["last_seq"]),
            # Both times are the site's server's: clocks of two sites may be hours apart.
            oldest=_seconds_between(state["first_ts"], requests["ts"])
            if state["messages"]
            else 0.0,
            answers=int(answers["state"]["messages"]),
            answers_bytes=int(answers["state"]["bytes"]),
            tail=int(answers["state"]["last_seq"]),
        )

    async def progress(self) -> SiteProgress:
        """How far the site's work has come."""
        state = await self.state()
        last = await self._get(self._subjects.answers_stream, {"seq": state.tail}, 1)
        seen = [SiteProgress(m.number(NUMBER), m.sequence, m.number(DROPPED)) for m in last]
        return beginning(state.first, seen[0] if seen else None, state.tail)

    # --- requests ----------------------------------------------------------------------

    async def submit(self, subject: str, data: list[Part], request_id: str) -> int:
        """Store a request; returns its number. Raises `ResourceExhausted` where the store, or the
        site's disk, is full."""
        remedy = "wait until the link is back, or give it more room with `swarm site add`"
        return await self._publish(
            subject, data, {"Nats-Msg-Id": request_id}, ("stores no more requests", remedy)
        )

    async def requests(self, least: int, count: int) -> list[StoredRequest]:
        """The next requests from number `least` on, in order."""
        subject = self._subjects.submit_all(self.site)
        ask = {"seq": least, "next_by_subj": subject}
        return await self._get(self._subjects.submitted_stream, ask, count)

    async def forget_requests(self, through: int) -> None:
        """Delete the requests up to this number: they are answered."""
        await self._call("STREAM.PURGE", self._subjects.submitted_stream, {"seq": through + 1})

    # --- answers -----------------------------------------------------------------------

    async def answer(
        self, agent: str, number: int, after: int, dropped: int, data: list[Part]
    ) -> int:
        """Store an answer behind the sequence `after`; returns its own. Raises `ApiError` with
        `WRONG_REVISIONS` where another one stands there, and `ResourceExhausted` where answers that
        nobody has read take all room."""
        headers = {
            NUMBER: str(number),
            DROPPED: str(dropped),
            "Nats-Expected-Last-Sequence": str(after),
        }
        remedy = "read them (`swarm results`), or give it more with `swarm site add`"
        subject = self._subjects.answers(self.site, agent)
        return await self._publish(subject, data, headers, ("has no room for answers", remedy))

    async def answers(self, agent: str, least: int, count: int) -> list[StoredRequest]:
        """The next answers to an agent, from sequence `least` on."""
        subject = self._subjects.answers(self.site, agent)
        ask = {"seq": least, "next_by_subj": subject}
        return await self._get(self._subjects.answers_stream, ask, count)

    async def mark_read(self, agent: str, sequence: int) -> None:
        """An agent has read its answers up to this sequence."""
        subject = self._subjects.read(self.site, agent)
        await self._publish(subject, [str(sequence).encode()], {})

    async def read_by(self, agent: str) -> int:
        """The sequence up to which an agent has read its answers."""
        ask = {"last_by_subj": self._subjects.read(self.site, agent)}
        return _read_mark(await self._get(self._subjects.read_stream, ask, 1))

    async def forget_read_answers(self, seen: dict[str, int], tail: int) -> None:
        """Delete what agents have read, but never the last answer of all: it tells how far the work
        has come. seen: the marks that this was done for, by subject; it is brought up to date."""
        subjects = self._subjects
        prefix = len(subjects.read(self.site, "x")) - 1
        at = 1
        while marks := await self._get(
            subjects.read_stream, {"seq": at, "next_by_subj": subjects.read_all(self.site)}, 256
        ):
            for mark in marks:
                sequence = min(_read_mark([mark]), tail - 1)
                if sequence > seen.get(mark.subject, 0):
                    of = subjects.answers(self.site, mark.subject[prefix:])
                    ask = {"filter": of, "seq": sequence + 1}
                    await self._call("STREAM.PURGE", subjects.answers_stream, ask)
                    seen[mark.subject] = sequence
            at = marks[-1].sequence + 1

    # --- the server --------------------------------------------------------------------

    async def _call(
        self, verb: str, stream: str, doc: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        body = b"" if doc is None else json.dumps(doc).encode()
        return await self._asked(in_domain(api(verb, stream), self.site), body)

    async def _publish(
        self,
        subject: str,
        data: list[Part],
        headers: dict[str, str],
        full: tuple[str, str] = ("is full", "give it more room with `swarm site add`"),
    ) -> int:
        """full: how a full store is told of, and its remedy."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""
        try:
            return int((await self._asked(subject, data, block))["seq"])
        except ApiError as error:
            if error.err_code not in jetstream.FULL:
                raise
            raise ResourceExhausted(
                f"site {self.site!r} {full[0]} ({error.description}): {full[1]}"
            ) from None
        except _Silent:
            # A server whose disk is full says nothing to who publishes, and answers all else.
            await self._call("STREAM.INFO", self._subjects.submitted_stream)
            raise ResourceExhausted(
                f"site {self.site!r} stores nothing, though its server answers: its disk is full, "
                "or was; make room there and restart that server (its log says more)"
            ) from None

    async def _asked(
        self, subject: str, data: list[Part] | bytes, headers: bytes = b""
    ) -> dict[str, Any]:
        try:
            message = await self._link.request(subject, data, TIMEOUT, headers, from_server=True)
        except NoResponders:
            raise await self._nobody() from None
        except TimeoutError:
            raise _Silent(f"site {self.site!r} did not answer within {TIMEOUT} s") from None
        try:
            return jetstream.parse(message.data)
        except ApiError as error:
            if error.err_code == jetstream.STREAM_NOT_FOUND:
                raise self._no_store() from None
            raise

    async def _nobody(self) -> SwarmError:
        """Why nobody answers: the site is away, or its JetStream has no such stream."""
        stream = self._subjects.submitted_stream
        subject = in_domain(api("STREAM.INFO", stream), self.site)
        try:
            await self._link.request(subject, b"", TIMEOUT, from_server=True)
        except (NoResponders, TimeoutError):
            own = self._link.server_domain
            return Unavailable(
                f"site {self.site!r} is away: its link is cut, or no server has that JetStream "
                "domain" + (f" (this one's is {own!r})" if own else "")
            )
        except NotConnected as error:
            return error
        return self._no_store()

    def _no_store(self) -> NotFound:
        return NotFound(
            f"site {self.site!r} stores no requests yet: an operator makes its store once, while "
            f"it is linked, with `swarm site add {self.site}`"
        )

    async def _get(self, stream: str, ask: dict[str, Any], count: int) -> list[StoredRequest]:
        """Stored messages in order, at most `count`; fewer where a cut ends the transfer."""
        if ask.get("seq") == 0 or count <= 0:
            return []
        subject = in_domain(api("DIRECT.GET", stream), self.site)
        many = {"batch": count, "max_bytes": BATCH_BYTES} if "next_by_subj" in ask else {}
        answers: asyncio.Queue[LinkMessage | PermissionDenied] = asyncio.Queue()
        reply = self._link.expect_from_server(answers.put_nowait)
        found: list[StoredRequest] = []

        def denied(refused: str, error: PermissionDenied) -> None:
            if refused in (subject, without_domain(subject)):
                answers.put_nowait(error)

        self._link.on_denied.append(denied)
        try:
            self._link.publish(subject, json.dumps(ask | many).encode(), reply)
            while True:
                async with asyncio.timeout(TIMEOUT):
                    message = await answers.get()
                if isinstance(message, PermissionDenied):
                    raise message
                if message.status == b"503":
                    raise await self._nobody()
                if message.status in (END_OF_BATCH, *NO_MESSAGES):
                    return found
                if message.status:
                    refusal = bytes(message.headers or b"")
                    raise Unavailable(f"site {self.site!r} refused: {refusal!r}")
                stored = _stored(message)
                if found and stored.sequence <= found[-1].sequence:
                    return found
                found.append(stored)
                if not many:
                    return found
        except TimeoutError:
            if found:
                return found
            raise Unavailable(f"site {self.site!r} did not answer within {TIMEOUT} s") from None
        finally:
            self._link.on_denied.remove(denied)
            self._link.forget(reply)


def _stored(message: LinkMessage) -> StoredRequest:
    headers = {
        name.decode(): value.decode(errors="replace")
        for name, value in _HEADER.findall(message.headers or b"")
    }
    # The server writes its own headers behind those of the sender, and the last of a name counts.
    sequence = headers.get("Nats-Sequence", "")
    if not (sequence.isascii() and sequence.isdigit()):
        raise Unavailable("the site sent a message without its sequence")
    return StoredRequest(int(sequence), headers.get("Nats-Subject", ""), headers, message.data)


def _read_mark(marks: list[StoredRequest]) -> int:
    text = bytes(marks[0].data[:MOST_DIGITS]) if marks else b""
    return int(text) if text.isdigit() else 0


def _seconds_between(first: str, then: str) -> float:
    return max(0.0, (parse_rfc3339(then) - parse_rfc3339(first)) / 1e9)
