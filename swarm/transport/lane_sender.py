"""The lane as a way: a parcel is stored, known for certain."""

from __future__ import annotations

from functools import partial

from swarm.errors import SwarmError
from swarm.transport.api import OnEvent, Refused, Stored
from swarm.transport.lane import Publisher, may_be_stored
from swarm.transport.parcel import Parcel


class LaneSender:
    """Stores parcels in lanes."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def send(self, subject: str, parcel: Parcel, on: OnEvent, late: bool = False) -> None:
        """Store the parcel in the lane of that subject: `Stored`, or `Refused` with the reason."""
        try:
            stored = partial(_stored, parcel, on, late)
            message_id = parcel.features.message_id
            self._publisher.publish(subject, parcel.encoded(), message_id, stored)
        except SwarmError as error:
            on(Refused(error, late))


def _stored(
    parcel: Parcel, on: OnEvent, late: bool, error: SwarmError | None, _sequence: int
) -> None:
    if error is None:
        on(Stored(late))
        return
    unknown = may_be_stored(error)
    if unknown:
        parcel.loan.keep()  # the lane's copy may be read from it
    on(Refused(error, late, unknown))
