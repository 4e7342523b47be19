"""The recorded requests of a model: which there are, and what each brought to each stage."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from swarm.audit.record import parse
from swarm.audit.stream import READ_TIMEOUT, extent_of, read_stream
from swarm.errors import ApiError, DecodeError, NoResponders, NotFound, Unavailable
from swarm.link import Link, jetstream
from swarm.subjects import Subjects, api
from swarm.wire.messages import Features

AT_ONCE = 8  # requests whose messages are read at a time
_TIME = re.compile(rb"Nats-Time-Stamp: ([0-9T:.\-]+)Z")
MICROSECONDS = 26  # characters of a time up to them


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request. at: when its first recorded message was kept, seconds since 1970. stages: what
    came to each stage. output: SHA-256 of the answer, "" where no audit tells it."""

    id: str
    model: str
    version: str
    at: float
    stages: dict[int, Features]
    output: str = ""

    @property
    def weights(self) -> int:
        """The weight version that its stages computed with, as far as recorded hops say."""
        hops = [hop for features in self.stages.values() for hop in features.all_hops]
        return max([int(hop.get("weights", 0)) for hop in hops], default=0)


async def recorded(
    link: Link, subjects: Subjects, model: str, request: str = "", since: float = 0.0
) -> list[Recorded]:
    """The recorded requests of a model, oldest first: all that were kept at `since` or later
    (seconds since 1970), or the one with this id.

    Raises `NotFound` where nothing was recorded, `Unavailable`, `DecodeError`.
    """
    stream = subjects.record_stream(model)
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
    outputs = await _outputs(link, subjects)

    async def read(version: str, name: str, names: list[str]) -> Recorded | None:
        async with limit:
            return await _request(link, stream, model, version, name, names, outputs)

    found = await asyncio.gather(*(read(v, n, names) for (v, n), names in requests.items()))
    chosen = [each for each in found if each is not None and each.at >= since]
    return sorted(chosen, key=lambda each: (each.at, each.id))


async def _request(
    link: Link,
    stream: str,
    model: str,
    version: str,
    request: str,
    names: list[str],
    outputs: dict[str, str],
) -> Recorded | None:
    """None where the stream's limits have removed it meanwhile."""
    stages: dict[int, Features] = {}
    times = []
    for subject in names:
        try:
            message = await link.request(
                api("DIRECT.GET", stream, subject), b"", READ_TIMEOUT, from_server=True
            )
        except (NoResponders, TimeoutError):
            raise Unavailable(f"stream {stream} does not answer") from None
        if message.status:
            continue
        features = Features.decode(bytes(message.data))
        stages[features.stage] = features
        if at := _TIME.search(message.headers or b""):
            text = at[1].decode()[:MICROSECONDS]
            times.append(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    if not stages:
        return None
    at_first = min(times, default=0.0)
    output = outputs.get(request, "")
    return Recorded(request, model, version, at_first, dict(sorted(stages.items())), output)


async def _outputs(link: Link, subjects: Subjects) -> dict[str, str]:
    """Hashes of answers, by request, as far as the mesh keeps an audit."""
    extent = await extent_of(link, subjects.audit_stream)
    outputs: dict[str, str] = {}
    if extent is None:
        return outputs
    async for stored in read_stream(link, subjects.audit_stream, extent):
        try:
            record = parse(stored.data)
        except DecodeError:
            continue  # `swarm audit verify` finds it
        if record.get("id") and record.get("output") and not record.get("degraded"):
            outputs[record["id"]] = str(record["output"])
    return outputs
