"""A parcel that is handed over, as a table: its state, what happens, and what follows.

`HandoverPolicy` decides when a parcel is late; `HandoverSender` carries the effects out. Where the
table has no row, the news change nothing. The page (`swarm/samehost/README.md`) shows the table.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import NamedTuple


class ParcelState(StrEnum):
    """Where a parcel is. Its sender keeps it in all states but the last two."""

    IN_FLIGHT = "IN FLIGHT"  # the receiver works on it
    STORING = "STORING"  # the server has it, and has not said whether the lane has it
    STORING_LATE = "STORING LATE"  # the same, and the receiver may still be done with it
    WAITING = "WAITING"  # late, and the lane has no room: the sender of the parcel tries again
    ENDED_STORING = "ENDED, STORING"  # the server has not said whether the lane has it
    ENDED = "ENDED"


class News(StrEnum):
    """What happens to a parcel."""

    DONE = "`+ACK` or `+WPI`"
    REFUSED = "`-NAK`, or its datagram was not sent"
    GONE = "the receiver's socket is gone"
    LATE = "its patience is over, the receiver hangs, or the sender ends"
    LET_GO = "the request's answer, or nobody waits for the parcel"
    UNWANTED = "the sender's own message is another node's by now"
    STORED = "the lane has it"
    FULL = "the lane is full"
    NOT_STORED = "the lane does not take it, or is silent"


class Effect(Enum):
    """What the sender of a parcel does."""

    UNREAD = "notes that no process reads its shared memory"
    FREE = "frees its shared memory"
    TAKE_BACK = "frees its shared memory, unless a process may read it"
    STORE = "stores it in the lane"
    TELL = "tells the stage, or the requester"


class Followed(NamedTuple):
    """A row of the table: the next state, and what is done, in this order."""

    state: ParcelState
    effects: tuple[Effect, ...] = ()


_S, _N, _E = ParcelState, News, Effect

TABLE: dict[tuple[ParcelState, News], Followed] = {
    (_S.IN_FLIGHT, _N.DONE): Followed(_S.ENDED, (_E.FREE, _E.TELL)),
    (_S.IN_FLIGHT, _N.REFUSED): Followed(_S.STORING, (_E.UNREAD, _E.STORE)),
    (_S.IN_FLIGHT, _N.GONE): Followed(_S.STORING, (_E.UNREAD, _E.STORE)),
    (_S.IN_FLIGHT, _N.LATE): Followed(_S.STORING_LATE, (_E.STORE,)),
    (_S.IN_FLIGHT, _N.LET_GO): Followed(_S.ENDED),
    (_S.STORING, _N.DONE): Followed(_S.ENDED_STORING, (_E.UNREAD, _E.TELL)),
    (_S.STORING, _N.REFUSED): Followed(_S.STORING, (_E.UNREAD,)),
    (_S.STORING, _N.LET_GO): Followed(_S.ENDED_STORING),
    (_S.STORING, _N.UNWANTED): Followed(_S.ENDED, (_E.FREE,)),
    (_S.STORING, _N.STORED): Followed(_S.ENDED, (_E.TELL,)),
    (_S.STORING, _N.FULL): Followed(_S.ENDED, (_E.TELL,)),
    (_S.STORING, _N.NOT_STORED): Followed(_S.ENDED, (_E.TELL,)),
    (_S.STORING_LATE, _N.DONE): Followed(_S.ENDED_STORING, (_E.UNREAD, _E.TELL)),
    (_S.STORING_LATE, _N.REFUSED): Followed(_S.STORING_LATE, (_E.UNREAD,)),
    (_S.STORING_LATE, _N.LET_GO): Followed(_S.ENDED_STORING),
    (_S.STORING_LATE, _N.UNWANTED): Followed(_S.ENDED, (_E.FREE,)),
    (_S.STORING_LATE, _N.STORED): Followed(_S.ENDED, (_E.TELL,)),
    (_S.STORING_LATE, _N.FULL): Followed(_S.WAITING, (_E.TELL,)),
    (_S.STORING_LATE, _N.NOT_STORED): Followed(_S.ENDED, (_E.TELL,)),
    (_S.WAITING, _N.DONE): Followed(_S.ENDED, (_E.FREE, _E.TELL)),
    (_S.WAITING, _N.REFUSED): Followed(_S.WAITING, (_E.UNREAD,)),
    (_S.WAITING, _N.LET_GO): Followed(_S.ENDED),
    (_S.ENDED_STORING, _N.STORED): Followed(_S.ENDED),
    (_S.ENDED_STORING, _N.FULL): Followed(_S.ENDED, (_E.TAKE_BACK,)),
    (_S.ENDED_STORING, _N.NOT_STORED): Followed(_S.ENDED, (_E.TAKE_BACK,)),
}
