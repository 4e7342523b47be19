"""`swarm record`: keep what enters the lanes of a model version, without touching its way.

The server copies each message that it stores in a lane to the subject `tap`, which the stream's
configuration (`republish`) says as long as a recording runs. This process listens there, and keeps
the requests that it draws. Nothing is kept once it has ended, however it ends.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from swarm.errors import InvalidArgument, NotFound, SwarmError
from swarm.link import Link, LinkMessage, jetstream
from swarm.records.subjects import RecordSubjects
from swarm.subjects import TOKEN, Subjects
from swarm.transport.lane import lane_streams

log = logging.getLogger("swarm.record")

NS = 1_000_000_000
KEPT_FOR, KEPT_BYTES = 86400.0, 256 << 20  # seconds, bytes; of a model, unless told otherwise
STORE_TIMEOUT = 5.0  # seconds
COPY_AGAIN_AFTER = 0.5  # seconds, where a server that came back has no lanes yet
MOST_UNDER_WAY = 256  # messages that are being stored
MOST_REMEMBERED = 1 << 16  # ids of the latest requests: the stages of one come within its budget
_MESSAGE_ID = re.compile(rb"Nats-Msg-Id: ([!-~]{1,160})/([0-9]{1,4})/([0-9]{1,9})\r")


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """What is kept of a model; the oldest goes first. max_age: seconds. max_bytes: of all of it.
    None: as it is, or `KEPT_FOR` and `KEPT_BYTES` where nothing is recorded yet."""

    max_age: float | None = None
    max_bytes: int | None = None

    @property
    def changes(self) -> dict[str, int]:
        """The settings of the stream that it asks for."""
        age = {} if self.max_age is None else {"max_age": int(self.max_age * NS)}
        return age | ({} if self.max_bytes is None else {"max_bytes": self.max_bytes})


_LIMITS = RecordLimits()


def is_drawn(request: str, share: float) -> bool:
    """Whether a request is among the share (0..1) of all that is recorded: by a hash of its id, so
    that all its stages are, or none."""
    drawn = int.from_bytes(sha256(request.encode()).digest()[:8], "big")
    return drawn < share * 2**64


def tap_config(subjects: Subjects, model: str, version: str) -> dict[str, str]:
    """`republish` of the streams of lanes. The copies have a subject of their own: a stream refuses
    subjects that another stream has (10065)."""
    ends = "{{wildcard(1)}}.{{wildcard(2)}}"
    source = subjects.features_of(model, version)
    lane = RecordSubjects.of(subjects).tap(model, version, 1)
    return {"src": source, "dest": f"{lane.rsplit('.', 2)[0]}.{ends}"}


def record_config(subjects: RecordSubjects, model: str, limits: RecordLimits) -> dict[str, Any]:
    """The stream of recorded requests, as JetStream's API takes it."""
    return {
        "name": subjects.record_stream(model),
        "subjects": [subjects.record_all(model)],
        "storage": "file",
        "discard": "old",
        "max_age": int(KEPT_FOR * NS),
        "max_bytes": KEPT_BYTES,
        **limits.changes,
        "max_msgs_per_subject": 1,  # a retry brings the same once more
        "allow_direct": True,
    }


class Recording:
    """Between `start()` and `stop()` what enters the lanes of one model version is kept.

    share: of the requests, 0..1. kept: messages that are stored; requests: how many these are of.
    missed: messages that could not be stored; foreign: messages whose id cannot be part of a
    subject. instead(stage, message): takes each message, and then nothing is stored.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        model: str,
        version: str,
        share: float,
        instead: Callable[[int, bytes], None] | None = None,
    ) -> None:
        if not 0 < share <= 1:
            raise InvalidArgument(f"--share {share}: it is above 0, and 1 for all requests")
        self.kept = self.missed = self.foreign = self.requests = 0
        self._instead = instead
        self._remembered: dict[str, None] = {}  # requests, in the order of their first message
        self._link = link
        self._subjects = RecordSubjects.of(subjects)
        self._model, self._version, self._share = model, version, share
        self._tasks: set[asyncio.Task[None]] = set()
        self._copying: asyncio.Task[None] | None = None
        self._sid = 0
        self._streams = 0  # that were copied at first

    async def start(self, limits: RecordLimits = _LIMITS, *, again: bool = False) -> None:
        """Listen, and let the server copy. again: take over from a recording that was killed.

        Raises `NotFound` (the version has no lanes), `InvalidArgument` (a recording is under way),
        `ApiError`, `Unavailable`, `PermissionDenied`.
        """
        configs = await self._lanes()
        self._streams = len(configs)
        if any(config.get("republish") for config in configs) and not again:
            raise InvalidArgument(
                f"{self._model}@{self._version} is being recorded already; if that recording was "
                "killed: --again"
            )
        if self._instead is None:
            wanted = record_config(self._subjects, self._model, limits)
            await jetstream.ensure_stream(self._link, wanted)
            await jetstream.change_stream(self._link, wanted["name"], limits.changes)
        taps = self._subjects.tap(self._model, self._version, 1).rsplit(".", 2)[0] + ".*.*"
        self._sid = self._link.subscribe(taps, self._take)
        await self._copy()
        self._link.on_up.append(self._reconnected)

    async def stop(self) -> None:
        """Let the server copy no more, and wait for what is being stored."""
        if self._reconnected in self._link.on_up:
            self._link.on_up.remove(self._reconnected)
        self._end_copying()
        for config in await self._lanes():
            await jetstream.change_stream(self._link, config["name"], {"republish": None})
        await self._link.unsubscribe_and_drain(self._sid)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STORE_TIMEOUT)

    async def _lanes(self) -> list[dict[str, Any]]:
        """The configurations of the version's streams of lanes."""
        found = await lane_streams(self._link, self._subjects, self._model, self._version)
        if not found:
            raise NotFound(f"{self._model}@{self._version} has no lanes yet: no node serves it")
        if len(found) < self._streams:
            raise NotFound(
                f"lanes of {self._model}@{self._version} are away, or not made again yet"
            )
        return [dict(info["config"]) for info in found]

    async def _copy(self) -> None:
        tap = tap_config(self._subjects, self._model, self._version)
        for config in await self._lanes():
            await jetstream.change_stream(self._link, config["name"], {"republish": tap})

    def _reconnected(self) -> None:
        """A server that lost its memory has lanes that were made anew."""
        self._end_copying()
        self._copying = asyncio.create_task(self._copy_again(), name="copy the lanes again")

    def _end_copying(self) -> None:
        if self._copying is not None:
            self._copying.cancel()

    async def _copy_again(self) -> None:
        """Until it works: the nodes make the lanes when they are connected again themselves."""
        while True:
            try:
                await self._copy()
                return
            except SwarmError as error:
                log.warning("nothing is recorded at the moment: %s", error)
                await asyncio.sleep(COPY_AGAIN_AFTER)

    def _take(self, message: LinkMessage) -> None:
        found = _MESSAGE_ID.search(message.headers or b"")
        if found is None:
            self.foreign += 1
            return
        request, stage = found[1].decode(), int(found[2])
        if not is_drawn(request, self._share):
            return
        if self._instead is not None:
            self._instead(stage, bytes(message.data))
        elif TOKEN.fullmatch(request) is None:
            self.foreign += 1
        elif len(self._tasks) >= MOST_UNDER_WAY:
            self.missed += 1
        else:
            task = asyncio.create_task(self._keep(request, stage, bytes(message.data)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _keep(self, request: str, stage: int, data: bytes) -> None:
        subject = self._subjects.record(self._model, self._version, request, stage)
        try:
            answer = await self._link.request(subject, data, STORE_TIMEOUT, from_server=True)
            jetstream.parse(answer.data)
        except (SwarmError, TimeoutError):
            self.missed += 1
            return
        self.kept += 1
        if request not in self._remembered:
            self.requests += 1
            self._remembered[request] = None
            if len(self._remembered) > MOST_REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
