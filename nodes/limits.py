"""The limits that follow from a node's settings and from a model's manifest."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.config import MOVED, NodeConfig
from swarm.errors import MessageTooLarge
from swarm.flow.ack_wait import ack_wait_for
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.transport.lane import LaneOptions, depth_for


def lane_options(info: ModelInfo, config: NodeConfig) -> LaneOptions:
    """Depth and ack_wait of a model's lanes, from its measured stage times.

    The depth is for the budget of requests that name none, and follows the budgets in use later.
    Every node computes these from the manifest and that budget, so any node may make the lanes.
    """
    slowest = max(stage.compute_ms for stage in info.stages) / 1e3
    depth = depth_for(info, config.budget)
    # A manifest knows medians; the p99 of a busy device is a few times as long.
    ack_wait = ack_wait_for(slowest * 3)
    return LaneOptions(
        depth=depth.messages,
        stage_bytes=depth.stage_bytes,
        ack_wait=ack_wait,
        storage=config.storage,
        copies=1 if config.lanes == MOVED else 0,
    )


def lane_bytes(info: ModelInfo) -> int:
    """Bytes that the lanes of a version set aside at their server, with the usual budget."""
    return sum(lane_options(info, NodeConfig("gateway")).stage_bytes)


@dataclass(frozen=True, slots=True)
class CreditBounds:
    """How many messages of one lane a node asks for."""

    most: int = 32
    """Messages in hand at once."""

    calm: int = 4
    """Messages in hand while none wait: a node that hangs holds back each for one `ack_wait`."""

    seconds: float = 0.005
    """Work that a node may have in hand beyond what it runs."""


CREDIT = CreditBounds()
# Bytes for a message's header beside its tensors: ids and names, and a hop of each stage before,
# of 0.4 KB where the request is traced.
HEADER_ROOM = 16 * 1024


def credit_of(fixed: int, compute: float) -> tuple[int, int]:
    """(least, most) messages that a node asks for and has in hand, by a run's seconds.

    With long runs a node asks for one message ahead only: another node could have begun it. With
    short runs the credit grows, while messages wait, until it hides a round trip. While none wait
    it stays small: a node that hangs holds back every message that it has asked for, one ack_wait
    each. Behind a slow link the lane asks for fewer, by its own
    measurement (`swarm.transport.lane.link_speed`).
    """
    if fixed:
        return fixed, fixed
    most = int(min(CREDIT.most, max(2, CREDIT.seconds / max(compute, 1e-6))))
    return min(CREDIT.calm, most), most


def check_payload(info: ModelInfo, link: Link) -> None:
    """Raises `MessageTooLarge` when a cut does not fit into the server's messages."""
    for stage in info.stages:
        needed = stage.message_bytes + HEADER_ROOM
        if needed > link.max_payload:
            raise MessageTooLarge(
                f"stage {stage.stage} of {info.model} exchanges {stage.message_bytes} bytes and a "
                f"header of {HEADER_ROOM} at most, and this server's max_payload is "
                f"{link.max_payload}: set `max_payload: {needed}` in its configuration, or choose a"
                " smaller cut (`swarm model inspect`)"
            )
