"""The notes of the core and of all features."""

from __future__ import annotations

from nodes.features import features
from nodes.notes import Documents, ModelNote, lighter_answers

MOST_NOTES = 200


def notes_of(documents: Documents) -> list[ModelNote]:
    """Of status documents that were read (`swarm.fleet.documents`)."""
    told = list(documents)
    found = [*lighter_answers(told), *(note for each in features() for note in each.notes(told))]
    return found[:MOST_NOTES]
