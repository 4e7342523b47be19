"""Tensors between processes of one host: the message carries a claim, the bytes stay put.

A sender puts its tensors into its `Ring` and publishes the claim; a receiver opens the claim with
its `Reader`, computes on the view, checks the claim once more, and only then publishes its result.
The receiver says in the segment itself when it is `done`. Every node calls `sweep`.
Whatever goes wrong is a `ShmError` (or a None from `put`), and the answer to it is the wire, as it
is below `MIN_BYTES`.
"""

from .claim import Claim
from .errors import ClaimError, ShmError, ShmForeign, ShmGone, ShmStale, ShmUnavailable
from .host import SHM_DIRECTORY, host_id, unavailable
from .reader import Reader
from .ring import MIN_BYTES, Ring, RingStats
from .sweep import sweep

__all__ = [
    "MIN_BYTES",
    "SHM_DIRECTORY",
    "Claim",
    "ClaimError",
    "Reader",
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
