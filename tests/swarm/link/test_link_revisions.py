"""Keys of which one server is behind: a process reads no value older than it knows of."""

from __future__ import annotations

from swarm.link.revisions import MOST_KEYS, Revisions


def test_a_read_is_behind_what_was_heard_of_that_key_and_of_no_other() -> None:
    revisions = Revisions()
    assert not revisions.is_behind("a", 0)
    revisions.heard("a", 7)
    revisions.heard("a", 5)
    assert revisions.is_behind("a", 6)
    assert not revisions.is_behind("a", 7)
    assert not revisions.is_behind("b", 0)


def test_what_was_wrong_is_forgotten_and_the_memory_is_bounded() -> None:
    revisions = Revisions()
    revisions.heard("a", 7)
    revisions.forget("a")
    assert not revisions.is_behind("a", 0)
    for number in range(MOST_KEYS + 1):
        revisions.heard(str(number), 1)
    assert not revisions.is_behind("0", 0)
    assert revisions.is_behind(str(MOST_KEYS), 0)
