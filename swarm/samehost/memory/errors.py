"""What can go wrong with tensors in shared memory.

    ShmError
    ├── ShmUnavailable   this host cannot do it; the message says why
    ├── ClaimError       malformed or hostile: the claim, or the file that it names, is not ours
    ├── ShmForeign       the claim is of another host, another /dev/shm or another user
    ├── ShmGone          the segment is no longer there
    └── ShmStale         the slot was recycled, or is being written

A receiver treats all of them alike: the request fails as UNAVAILABLE, and the requester sends the
bytes over the wire. They differ in where an operator should look. A sender sees none of them:
`Ring.put` answers None.
"""

from __future__ import annotations

from swarm.errors import Unavailable


class ShmError(Unavailable):
    """A tensor in shared memory cannot be had."""


class ShmUnavailable(ShmError):
    """This host, or this container, has no usable shared memory."""


class ClaimError(ShmError):
    """The claim is malformed, or the file that it names is not a segment of ours."""


class ShmForeign(ShmError):
    """The claim was written on another host, in another /dev/shm or by another user."""


class ShmGone(ShmError):
    """The segment does not exist any more: its owner left, or died long enough ago."""


class ShmStale(ShmError):
    """The slot holds something else by now, or is being written."""
