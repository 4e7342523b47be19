"""Errors carry a status, and a status its error."""

from __future__ import annotations

from swarm import errors
from swarm.errors import Internal, ResourceExhausted, Status, SwarmError, error_for


def test_every_status_word_but_ok_has_an_error_that_carries_it() -> None:
    for status in Status:
        error = error_for(status, "why")
        assert str(error) == "why"
        if status is not Status.OK:
            assert error.status is status
    assert type(error_for("NONSENSE", "x")) is Internal
    full = error_for(Status.RESOURCE_EXHAUSTED, "full", 0.25)
    assert isinstance(full, ResourceExhausted)
    assert (str(full), full.retry_after) == ("full", 0.25)


def test_every_error_is_a_swarm_error_with_a_status() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    assert len(classes) >= 13
    assert all(issubclass(c, SwarmError) and c.status in Status for c in classes)
