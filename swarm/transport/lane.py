"""The lane as a Sender, and the deliveries that come from a lane."""

from __future__ import annotations

from functools import partial

from swarm.errors import SwarmError
from swarm.lanes import Publisher
from swarm.subjects import Subjects
from swarm.transport.api import OnEvent, Refused, Stored
from swarm.transport.parcel import Parcel


class LaneSender:
    """Stores parcels in the lanes of one stage of one model version."""

    def __init__(
        self, publisher: Publisher, subjects: Subjects, model: str, version: str, stage: int
    ) -> None:
        self._publisher = publisher
        self._subject_of = partial(subjects.features, model, version, stage)

    def subject(self, parcel: Parcel) -> str:
        """The lane that the parcel's routing chose."""
        return self._subject_of(parcel.lane)

    def send(self, parcel: Parcel, on: OnEvent, late: bool = False) -> None:
        """Store the parcel: `Stored`, or `Refused` with the lane's reason."""
        try:
            parts = parcel.encoded()
            stored = partial(_stored, on, late)
            message_id = parcel.features.message_id
            self._publisher.publish(self.subject(parcel), parts, message_id, stored)
        except SwarmError as error:
            on(Refused(error))


def _stored(on: OnEvent, late: bool, error: SwarmError | None, _sequence: int) -> None:
    on(Stored(late) if error is None else Refused(error))
