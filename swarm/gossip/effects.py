"""The effects that the gossip asks its driver to carry out, and its view of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["alive", "suspect", "dead", "left"]
Kind = Literal["joined", "left", "suspected", "refuted", "died", "returned", "updated", "duplicate"]


@dataclass(frozen=True, slots=True)
class GossipRequest:
    """Send `payload` to `peer`'s gossip subject and expect an answer within `timeout` seconds.

    Report exactly one outcome with `token`: `on_reply`, `on_timeout` or `on_no_responders`.
    """

    peer: str
    payload: bytes
    timeout: float
    token: int


@dataclass(frozen=True, slots=True)
class Send:
    """Publish `payload` on `peer`'s gossip subject; no answer is expected."""

    peer: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to `node`, as seen from here.

    `joined` first heard of; `left` announced its departure; `suspected` silent; `refuted` a
    suspicion was wrong; `died`; `returned` alive after all, with a new incarnation; `updated` the
    keys named in `detail` changed; `duplicate` two processes use one node id.
    """

    kind: Kind
    node: str
    detail: str = ""


Effect = GossipRequest | Send | Event


@dataclass(frozen=True, slots=True)
class PeerView:
    """One node as this node sees it; `values` are its live keys, decoded.

    `phi` is 0 unless the node failed to answer; then it is Hayashibara's suspicion level of its
    silence (1: one in ten living nodes would be this late; 8: one in 10^8).
    """

    node: str
    state: State
    incarnation: int
    version: int
    values: Mapping[str, object]
    phi: float = 0.0
