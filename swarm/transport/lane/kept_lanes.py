"""The lanes of a model version as its mesh keeps them at the server: one `KeptStream` a stage."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from swarm.features import features
from swarm.link import Link
from swarm.link.kept_stream import KeptStream, LimitFault
from swarm.subjects import Subjects
from swarm.transport.lane.depth import FEWEST_LARGE, HYSTERESIS
from swarm.transport.lane.streams import (
    CONSUMER_FIXED,
    FIXED,
    LEAST_ACK_WAIT,
    LONGEST_ACK_WAIT,
    NS,
    LaneOptions,
    consumer_config,
    dead_config,
    least_bytes,
    stream_config,
)


def kept_lanes(
    link: Link, subjects: Subjects, model: str, version: str, stages: int, options: LaneOptions
) -> list[KeptStream]:
    """The lanes of all stages, from stage 1 on."""
    # Where no feature copies what comes, no copy is as it has to be.
    taps = next((each.taps for each in features() if each.taps), "nobody")
    return [
        KeptStream(
            link,
            lane_title(model, version, stage),
            stream_config(subjects, model, version, stage, options, link.domain),
            f"swarm model promote {model}@{version}",
            fixed=FIXED,
            republished=subjects.under(taps, model_name=model, version=version),
            bounds=partial(_bounds, options, stage),
            least_bytes=least_bytes(options, stage),
            consumer=consumer_config(subjects, model, version, stage, options),
            consumer_fixed=CONSUMER_FIXED,
            consumer_bounds=_consumer_bounds,
            renewable=True,
            probe=subjects.whereabouts(model, version, stage),
        )
        for stage in range(1, stages + 1)
    ]


def kept_dead_letters(link: Link, subjects: Subjects, mended_by: str) -> KeptStream:
    """The mesh's stream of dead letters. mended_by: what an operator types."""
    return KeptStream(
        link,
        "the stream of dead letters",
        dead_config(subjects),
        mended_by,
        probe=subjects.dead("probe"),
    )


def lane_title(model: str, version: str, stage: int | str) -> str:
    """What people call the lanes of a stage."""
    return f"the lane of stage {stage} of {model}@{version}"


def _bounds(options: LaneOptions, stage: int, config: Mapping[str, Any]) -> list[LimitFault]:
    """What is wrong with the bounds of a stage's stream. Its depth follows the budgets in use, and
    its bytes the depth."""
    depth, most = int(config.get("max_msgs_per_subject", -1)), int(config.get("max_bytes", -1))
    faults, field = [], "max_msgs_per_subject"
    if depth <= 0:
        faults.append(LimitFault("it holds any number of messages", field, options.depth))
    elif depth < min(FEWEST_LARGE, options.depth):
        faults.append(LimitFault(f"it holds {depth} messages at the most", field, options.depth))
    if faults:
        depth = options.depth
    if not options.stage_bytes:
        return faults
    wanted = int(options.stage_bytes[stage - 1] * min(1.0, depth / options.depth))
    if most <= 0:
        text = "it has no bound in bytes, and may take the room of all others"
        faults.append(LimitFault(text, "max_bytes", wanted))
    elif most * HYSTERESIS < wanted:
        text = (
            f"it holds {most} bytes, not {wanted}: somebody has changed it, or the server has no "
        )
        text += f"more to set aside (`max_{config.get('storage')}_store`)"
        faults.append(LimitFault(text, "max_bytes", wanted))
    return faults


def _consumer_bounds(config: Mapping[str, Any]) -> list[LimitFault]:
    wait = int(config.get("ack_wait", 0)) / NS
    if LEAST_ACK_WAIT <= wait <= LONGEST_ACK_WAIT:
        return []
    return [LimitFault(f"its consumer's `ack_wait` is {wait:g} s", "ack_wait", None)]
