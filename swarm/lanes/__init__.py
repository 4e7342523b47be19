"""Lanes: queues of features, one shared by a stage's replicas, or one of a single node."""

from swarm.lanes.consumer import Lane
from swarm.lanes.early import DONE, PASSED_ON, REFUSED, Early
from swarm.lanes.fresh import COVER, QUEUE, FreshDelivery, FreshLane
from swarm.lanes.message import LaneMessage
from swarm.lanes.publisher import Publisher
from swarm.lanes.server_consumer import MOST_ACK_WAIT
from swarm.lanes.streams import LaneOptions, consumer_config, ensure_lanes, stream_config

AnyDelivery = LaneMessage | Early | FreshDelivery  # what a stage works on

__all__ = [
    "COVER",
    "DONE",
    "MOST_ACK_WAIT",
    "PASSED_ON",
    "QUEUE",
    "REFUSED",
    "AnyDelivery",
    "Early",
    "FreshDelivery",
    "FreshLane",
    "Lane",
    "LaneMessage",
    "LaneOptions",
    "Publisher",
    "consumer_config",
    "ensure_lanes",
    "stream_config",
]
