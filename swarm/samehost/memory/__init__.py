"""Tensors between processes of one host: the message carries a claim, the bytes stay put.

A sender puts its tensors into its `Ring` and publishes the claim; a receiver opens the claim with
its `ClaimReader`, computes on the view, checks the claim once more, and only then publishes its
result. The receiver says in the segment itself when it is `done`. Every node calls `sweep`.
Every failure is a `ShmError` (or a None from `put`): the tensor travels over the wire then, as
tensors below `MIN_BYTES` always do.

    ring      the sender's side: its segment, its slots, and how long they are kept
    reader    the receiver's side: a claim becomes a view
    slots     the bytes of a slot, and the protocol by which a reader knows that a slot is whole
    segment   the file: made, grown, opened
    arena     pure: the free bytes of a segment
    claim     the words that a message carries
    sweep     removes the segments of dead processes
    host      the processes that can share memory with this one
    measure   the cost
"""

from .claim import Claim
from .errors import ClaimError, ShmError, ShmForeign, ShmGone, ShmStale, ShmUnavailable
from .host import SHM_DIRECTORY, host_id, unavailable
from .reader import ClaimReader
from .ring import MIN_BYTES, Ring, RingStats
from .sweep import sweep

__all__ = [
    "MIN_BYTES",
    "SHM_DIRECTORY",
    "Claim",
    "ClaimError",
    "ClaimReader",
    "Ring",
    "RingStats",
    "ShmError",
    "ShmForeign",
    "ShmGone",
    "ShmStale",
    "ShmUnavailable",
    "host_id",
    "sweep",
    "unavailable",
]
