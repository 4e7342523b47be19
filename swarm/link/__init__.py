"""The data link: a lean connection for the hot path. See `swarm.link.link`."""

from swarm.link.link import Link
from swarm.link.types import LinkMessage, LinkOptions

__all__ = ["Link", "LinkMessage", "LinkOptions"]
