"""The recorded requests of a model: which there are, and what each brought to each stage."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from swarm.errors import ApiError, DecodeError, NoResponders, NotFound, Unavailable
from swarm.link import Link, jetstream
from swarm.records.record import STEPS, parse
from swarm.records.stream import READ_TIMEOUT, extent_of, read_stream
from swarm.records.subjects import RecordSubjects
from swarm.subjects import Subjects, api
from swarm.wire.hops import CACHED, KEPT, WEIGHTS_OF
from swarm.wire.messages import Features
from swarm.wire.tensors import are_referred

AT_ONCE = 8  # requests whose messages are read at a time
_TIME = re.compile(rb"Nats-Time-Stamp: ([0-9T:.\-]+)Z")
MICROSECONDS = 26  # characters of a time up to them


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request. at: when its first recorded message was kept, seconds since 1970. stages: what
    came to each stage. audit: its record there, {} where there is none."""

    id: str
    model: str
    version: str
    at: float
    stages: dict[int, Features]
    audit: Mapping[str, Any] = field(default_factory=dict)

    @property
    def output(self) -> str:
        """SHA-256 of the answer, "" where no audit tells it."""
        return "" if self.audit.get("degraded") else str(self.audit.get("output", ""))

    @property
    def hops(self) -> list[Mapping[str, Any]]:
        """Who worked on it: of all stages where there is an audit, else of those before the last
        one that was recorded."""
        told = self.audit.get("hops") or []
        return [*(hop for f in self.stages.values() for hop in f.all_hops), *told]

    @property
    def weights(self) -> int:
        """The weight version that its stages computed with, as far as hops say."""
        return max([int(hop.get("weights", 0)) for hop in self.hops], default=0)

    def steps(self, stage: int) -> dict[str, str]:
        """SHA-256 of what each step inside a stage's run made, "" for what was left out; {} where
        no audit tells it."""
        of_stage = (hop.get(STEPS) for hop in self.hops if hop["stage"] == stage)
        told = next((steps for steps in of_stage if isinstance(steps, Mapping)), {})
        return {name: made for name, made in told.items() if isinstance(made, str)}

    def weights_of(self, stage: int) -> dict[str, list[int]]:
        """By step inside a stage's run, the weight versions that it was answered with, where they
        were learned and an audit tells it."""
        told = (hop.get(WEIGHTS_OF) for hop in self.hops if hop["stage"] == stage)
        return next((dict(each) for each in told if isinstance(each, Mapping)), {})

    @property
    def cached_ms(self) -> int | None:
        """The age of its answer, where stage 1 had kept that, None for one that was computed."""
        ages = (hop.get(CACHED) for hop in self.audit.get("hops") or () if hop["stage"] == 1)
        return next((age for age in ages if isinstance(age, int)), None)

    @property
    def kept(self) -> list[str]:
        """The steps inside runs of whose answers some were kept ones."""
        return [name for hop in self.audit.get("hops") or () for name in hop.get(KEPT, ())]

    def node(self, stage: int) -> str:
        """Who ran a stage then, "" where nothing says so."""
        return next((str(hop["node"]) for hop in self.hops if hop["stage"] == stage), "")


async def recorded(
    link: Link, subjects: Subjects, model: str, request: str = "", last: float = math.inf
) -> list[Recorded]:
    """The recorded requests of a model, oldest first: all that were kept in the `last` seconds, by
    the clock of their server alone, or the one with this id, the mesh's or its client's own.

    Raises `NotFound` where nothing was recorded, `Unavailable`.
    """
    stream = RecordSubjects.of(subjects).record_stream(model)
    audit = await _audit(link, subjects)
    # A client of the `infer` service knows its own id only.
    own = {str(record.get("client_id")): mesh_id for mesh_id, record in audit.items()}
    request = own.get(request, request)
    wanted = f"{subjects.root}.record.{model}.*.{request or '*'}.*"
    try:
        question = {"subjects_filter": wanted}
        info = await jetstream.call(link, api("STREAM.INFO", stream), question)
    except ApiError as error:
        if error.err_code != jetstream.STREAM_NOT_FOUND:
            raise
        raise NotFound(
            f"nothing was recorded of {model!r}: swarm record {model} --for 1m"
        ) from None
    requests: dict[tuple[str, str], list[str]] = {}
    for subject in info["state"].get("subjects") or {}:
        *_, version, name, _stage = subject.split(".")
        requests.setdefault((version, name), []).append(subject)
    limit = asyncio.Semaphore(AT_ONCE)

    async def read(version: str, name: str, names: list[str]) -> Recorded | None:
        async with limit:
            return await _request(link, stream, model, version, name, names, audit)

    found = await asyncio.gather(*(read(v, n, names) for (v, n), names in requests.items()))
    since = jetstream.told_time(info) - last
    chosen = [each for each in found if each is not None and each.at >= since]
    return sorted(chosen, key=lambda each: (each.at, each.id))


async def _request(
    link: Link,
    stream: str,
    model: str,
    version: str,
    request: str,
    names: list[str],
    audit: Mapping[str, Mapping[str, Any]],
) -> Recorded | None:
    """None where the stream's limits have removed it meanwhile."""
    stages: dict[int, Features] = {}
    times, unread = [], False
    for subject in names:
        try:
            message = await link.request(
                api("DIRECT.GET", stream, subject), b"", READ_TIMEOUT, from_server=True
            )
        except (NoResponders, TimeoutError):
            raise Unavailable(f"stream {stream} does not answer") from None
        if message.status:
            continue
        try:
            features = Features.decode(bytes(message.data))
            if are_referred(features.tensors):
                raise DecodeError("its tensors were at a node, and are gone")
        except DecodeError:  # or of a hostile process: it was no message of this request
            unread = True
            continue
        stages[features.stage] = features
        if at := _TIME.search(message.headers or b""):
            text = at[1].decode()[:MICROSECONDS]
            times.append(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    if not stages and not unread:
        return None
    at_first = min(times, default=0.0)
    told = audit.get(request, {})
    return Recorded(request, model, version, at_first, dict(sorted(stages.items())), told)


async def _audit(link: Link, subjects: Subjects) -> dict[str, Mapping[str, Any]]:
    """The records of requests that were answered, by request, as far as the mesh keeps an audit."""
    stream = RecordSubjects.of(subjects).audit_stream
    extent = await extent_of(link, stream)
    found: dict[str, Mapping[str, Any]] = {}
    if extent is None:
        return found
    async for stored in read_stream(link, stream, extent):
        try:
            record = parse(stored.data)
        except DecodeError:
            continue  # `swarm audit verify` finds it
        if record.get("id") and record.get("status") == "OK":
            found[record["id"]] = record
    return found


async def recorded_models(link: Link, subjects: Subjects) -> list[str]:
    """The models of which something was recorded. Raises `ApiError`, `Unavailable`."""
    question = {"subject": f"{subjects.root}.record.>"}
    answer = await jetstream.call(link, api("STREAM.NAMES"), question)
    return sorted(str(name).rpartition("=")[2] for name in answer.get("streams") or ())
