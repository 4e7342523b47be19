"""Lanes: queues of features, one shared by a stage's replicas, or one of a single node."""

from swarm.transport.lane.consumer import Lane
from swarm.transport.lane.depth import Budgets, Depth, depth_for
from swarm.transport.lane.kept_lanes import kept_dead_letters, kept_lanes, lane_title
from swarm.transport.lane.message import LaneMessage
from swarm.transport.lane.moving import is_due, make_anew
from swarm.transport.lane.publisher import NoPubAck, NotStored, Publisher, may_be_stored
from swarm.transport.lane.server_consumer import MOST_ACK_WAIT
from swarm.transport.lane.streams import (
    LaneOptions,
    consumer_config,
    ensure_lanes,
    follow_depth,
    lane_streams,
    lanes_of_model,
    least_bytes,
    make_lanes,
    stream_config,
)
from swarm.transport.lane.tuning import Tuning, measured_work
from swarm.transport.lane.whereabouts import TwoDomains, check_one_domain, find_streams, is_kept

__all__ = [
    "MOST_ACK_WAIT",
    "Budgets",
    "Depth",
    "Lane",
    "LaneMessage",
    "LaneOptions",
    "NoPubAck",
    "NotStored",
    "Publisher",
    "Tuning",
    "TwoDomains",
    "check_one_domain",
    "consumer_config",
    "depth_for",
    "ensure_lanes",
    "find_streams",
    "follow_depth",
    "is_due",
    "is_kept",
    "kept_dead_letters",
    "kept_lanes",
    "lane_streams",
    "lane_title",
    "lanes_of_model",
    "least_bytes",
    "make_anew",
    "make_lanes",
    "may_be_stored",
    "measured_work",
    "stream_config",
]
