"""Gossip without a master: who is in the mesh, who is alive, and what each says of itself.

Built on Scuttlebutt's reconciliation, SWIM's probes and suspicion, Lifeguard's local health and a
phi-accrual detector; the module docstrings name the papers and what was changed.
"""

from swarm.gossip.config import LAN, LOCAL, WAN, GossipConfig
from swarm.gossip.core import Gossip
from swarm.gossip.effects import Effect, Event, GossipRequest, PeerView, Send
from swarm.gossip.exchange import Validator

__all__ = [
    "LAN",
    "LOCAL",
    "WAN",
    "Effect",
    "Event",
    "Gossip",
    "GossipConfig",
    "GossipRequest",
    "PeerView",
    "Send",
    "Validator",
]
