"""The server's configuration of lanes: one WorkQueue stream for each stage of a model version, and
one consumer for each lane. Lanes of one stream share its bytes: those of two stages share none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from swarm.errors import ApiError, Unavailable
from swarm.link import Link, jetstream
from swarm.subjects import ANY, Subjects, api
from swarm.transport.lane.depth import FEWEST_LARGE, Depth, changed_depth
from swarm.transport.lane.pulls import GROUP

log = logging.getLogger("swarm.transport.lane")

NS = 1_000_000_000
SMALLER = "%s holds %d bytes in place of %d: the server has no more to set aside"


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How the server keeps the lanes of a model version. Times in seconds.

    depth: messages a lane holds, the unacked ones included; one more is refused at once.
    stage_bytes: of all lanes of a stage together, from stage 1 on; () for as many as the server has
    room for.
    ack_wait: silence after which a message is handed to another node. storage: `memory` (a restart
    of the server loses the queued messages; requesters retry) or `file`. copies: servers of a
    cluster that keep the messages; 0: as many as keep all else (`jetstream.replicas_of`).
    max_age: the age at which an abandoned message is removed.
    duplicates: how long the server remembers a message's id; longer than the latest redelivery,
    which comes after a few ack_waits.
    """

    depth: int = 256
    stage_bytes: tuple[int, ...] = ()
    ack_wait: float = 0.1
    storage: str = "memory"
    copies: int = 1
    max_age: float = 120.0
    duplicates: float = 30.0


# What nobody may change of a lane's stream, beside what no stream has; and of its consumer.
FIXED = (
    "subjects",
    "retention",
    "discard",
    "discard_new_per_subject",
    "max_age",
    "duplicate_window",
    "max_msgs",
    "max_msg_size",
    "no_ack",
    "deny_delete",
)
CONSUMER_FIXED = (
    "filter_subject",
    "ack_policy",
    "max_deliver",
    "max_ack_pending",
    "priority_groups",
    "priority_policy",
    "deliver_subject",
    "inactive_threshold",
    "headers_only",
    "rate_limit_bps",
    "max_batch",
    "max_expires",
    "max_bytes",
)
LEAST_ACK_WAIT, LONGEST_ACK_WAIT = 0.01, 60.0  # seconds; nodes tune it between these


def stream_config(
    subjects: Subjects,
    model: str,
    version: str,
    stage: int,
    options: LaneOptions,
    domain: str = "",
) -> dict[str, Any]:
    """The configuration of a stage's stream, as JetStream's API takes it."""
    copies = {"num_replicas": options.copies} if options.copies else {}
    return copies | {
        "name": subjects.stream(model, version, stage, domain),
        "subjects": [subjects.features_of(model, version, stage)],
        "retention": "workqueue",
        "storage": options.storage,
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": options.depth,
        "max_bytes": options.stage_bytes[stage - 1] if options.stage_bytes else -1,
        "max_age": int(options.max_age * NS),
        "duplicate_window": int(min(options.duplicates, options.max_age) * NS),
    }


def consumer_config(
    subjects: Subjects, model: str, version: str, stage: int, options: LaneOptions, lane: str = ANY
) -> dict[str, Any]:
    """The configuration of one lane's consumer, as JetStream's API takes it."""
    return {
        "durable_name": subjects.consumer(model, stage, lane),
        "filter_subject": subjects.features(model, version, stage, lane),
        "ack_policy": "explicit",
        "ack_wait": int(options.ack_wait * NS),
        # A message that ends its nodes is counted, and dead-lettered, by a node: the server could
        # not tell the requester.
        "max_deliver": -1,
        "max_ack_pending": 4096,
        "priority_groups": [GROUP],
        "priority_policy": "prioritized",
        "mem_storage": options.storage == "memory",
        # As many as the stream has: the server refuses any other number in a work queue.
        "num_replicas": 0,
    }


async def ensure_lanes(
    link: Link, subjects: Subjects, model: str, version: str, stages: int, options: LaneOptions
) -> str:
    """Make the streams of all stages of a model version, so that each message finds the next lane
    before that stage's first node comes; and the mesh's stream of dead letters.

    Returns the one stream that has all these lanes where an older swarm has made it, and else "".
    Raises `ApiError`, `Unavailable`, `NotConnected`.
    """
    # A cluster's leader names those too whose server is away, which would not answer.
    asked = {"subject": subjects.features_of(model, version)}
    names = (await jetstream.call(link, api("STREAM.NAMES"), asked)).get("streams") or ()
    if (older := subjects.older_stream(model, version, link.domain)) in names:
        return older  # it has their subjects, and nodes of that swarm may serve still
    missing = {
        stage: config
        for stage in range(1, stages + 1)
        if (config := stream_config(subjects, model, version, stage, options, link.domain))["name"]
        not in names
    }
    await _make_streams(link, missing, options)
    await jetstream.ensure_stream(link, dead_config(subjects))
    return ""


def dead_config(subjects: Subjects) -> dict[str, Any]:
    """The configuration of the stream of dead letters."""
    return {
        "name": subjects.dead_stream,
        "subjects": [subjects.dead_all],
        "storage": "file",
        "max_msgs": 10_000,
        "max_bytes": 256 << 20,
        "max_age": 7 * 24 * 3600 * NS,
        "discard": "old",
    }


def least_bytes(options: LaneOptions, stage: int) -> int:
    """Bytes below which the lanes of a stage are of no use: of a few messages; 0 for no bound."""
    if not options.stage_bytes:
        return 0
    return int(options.stage_bytes[stage - 1] / options.depth * min(options.depth, FEWEST_LARGE))


async def _make_streams(
    link: Link, configs: dict[int, dict[str, Any]], options: LaneOptions
) -> None:
    """Make streams, by stage, unless they are there. Where the server has not as many bytes to set
    aside, all of them hold less: without a bound they would take the room of all others, and a
    single stream of full size would take the room of the later stages.

    Raises `ResourceExhausted` where there is no room for a few messages; `ApiError`, `Unavailable`.
    """
    made: set[int] = set()
    share = 1.0
    while True:
        smaller = {
            stage: config | {"max_bytes": _shared(config["max_bytes"], share, options, stage)}
            for stage, config in configs.items()
        }
        try:
            for stage, config in smaller.items():
                if stage in made:
                    size = {"max_bytes": config["max_bytes"]}
                    await jetstream.change_stream(link, config["name"], size)
                else:
                    await jetstream.ensure_stream(link, config)
                made.add(stage)
        except ApiError as error:
            if not jetstream.is_no_room(error):
                raise
            if all(c["max_bytes"] <= least_bytes(options, s) for s, c in smaller.items()):
                raise jetstream.no_room(config, error) from None
            share /= 2
            continue
        for stage, config in smaller.items():
            if config["max_bytes"] < configs[stage]["max_bytes"]:
                wanted = configs[stage]["max_bytes"]
                log.warning(SMALLER, config["name"], config["max_bytes"], wanted)
        return


def _shared(wanted: int, share: float, options: LaneOptions, stage: int) -> int:
    if wanted <= 0:
        return wanted
    return max(1, least_bytes(options, stage), int(wanted * share))


async def lane_streams(
    link: Link, subjects: Subjects, model: str, version: str
) -> list[dict[str, Any]]:
    """What the server says of each stream of a model version's lanes; none where it has none.

    Raises `ApiError`, `Unavailable`, `NotConnected`.
    """
    asked = {"subject": subjects.features_of(model, version)}
    answer = await jetstream.call(link, api("STREAM.LIST"), asked)
    own = subjects.older_stream(model, version)  # an operator may have streams with copies of lanes
    return [
        info
        for info in answer.get("streams") or ()
        if f"{info['config']['name']}=".startswith(f"{own}=")
    ]


async def lanes_of_model(link: Link, subjects: Subjects, model: str) -> dict[str, list[str]]:
    """The names of the streams of a model's lanes, by version.

    Raises `ApiError`, `Unavailable`, `NotConnected`.
    """
    found: dict[str, list[str]] = {}
    offset = 0
    while True:
        asked = {"subject": subjects.features_of_model(model), "offset": offset}
        page = await jetstream.call(link, api("STREAM.NAMES"), asked)
        names = page.get("streams") or []
        for name in names:
            parts = name.split("=")
            # SWARM, mesh, model, version, stage: an operator may have streams of other names.
            if len(parts) > 3 and parts[:3] == ["SWARM", subjects.mesh, model]:
                found.setdefault(parts[3], []).append(name)
        offset += len(names)
        if not names or offset >= int(page.get("total", 0)):
            return found


async def _remove_if_empty(link: Link, older: str) -> None:
    """What it holds ends within `max_age`: raises `Unavailable` until then."""
    info = await jetstream.call(link, api("STREAM.INFO", older))
    if held := info["state"]["messages"]:
        raise Unavailable(
            f"{older}, an older swarm's stream of lanes, is replaced when it is empty, and holds "
            f"{held} messages: stop that swarm's nodes, and push again"
        )
    await jetstream.call(link, api("STREAM.DELETE", older))


async def follow_depth(
    link: Link, subjects: Subjects, model: str, version: str, wanted: Depth
) -> bool:
    """Give the lanes of a model version another depth, where theirs is off by much; whether it was.

    Raises `ApiError`, `Unavailable`, `NotConnected`.
    """
    streams = (
        subjects.stream(model, version, stage, link.domain)
        for stage in range(1, len(wanted.stage_bytes) + 1)
    )
    changed = [
        await _follow(link, stream, wanted.messages, most)
        for stream, most in zip(streams, wanted.stage_bytes, strict=True)
    ]
    return any(changed)


async def _follow(link: Link, stream: str, messages: int, most: int) -> bool:
    try:
        info = await jetstream.call(link, api("STREAM.INFO", stream))
    except ApiError as error:
        if error.err_code != jetstream.STREAM_NOT_FOUND:
            raise
        return False  # the stream of an older swarm stays as that one makes it
    config, held = info["config"], int(info["state"]["messages"])
    if not changed_depth(int(config["max_msgs_per_subject"]), messages, held):
        return False
    changes = {"name": stream, "max_msgs_per_subject": messages, "max_bytes": most}

    async def store(changes: dict[str, Any]) -> dict[str, Any]:
        return await jetstream.change_stream(link, stream, changes)

    present = int(config["max_bytes"])
    least = min(most, present if present > 0 else most // max(1, messages // FEWEST_LARGE))
    await jetstream.within_room(store, changes, least)
    return True


async def make_lanes(
    link: Link, subjects: Subjects, model: str, version: str, stages: int, options: LaneOptions
) -> None:
    """Make all that the nodes of a model version need: streams, and the consumer of each stage's
    shared lane. What exists stays as it is, but for the one stream of an older swarm, which is
    replaced. Nodes without the right to make them use these.

    Raises `ApiError`, `Unavailable`, `NotConnected`, `PermissionDenied`.
    """
    if older := await ensure_lanes(link, subjects, model, version, stages, options):
        await _remove_if_empty(link, older)
        await ensure_lanes(link, subjects, model, version, stages, options)
    for stage in range(1, stages + 1):
        stream = subjects.stream(model, version, stage, link.domain)
        config = consumer_config(subjects, model, version, stage, options)
        await jetstream.ensure_consumer(link, stream, config)
