"""What the supervisor does about its server: decisions on a clock that the test turns."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.up.server_rules import (
    FIRST_PAUSE,
    FULL_BELOW,
    HUNG_AFTER,
    LEAST_PROBES,
    LONGEST_PAUSE,
    ROOM_ABOVE,
    Life,
    ServerAction,
    ServerEvent,
    ServerStep,
    StoreFiles,
    StoreState,
    judged,
    next_step,
)
from nodes.up.server_watch import read_store

UP = Life(has_answered=True)


def test_a_server_that_was_up_starts_again_at_once_however_often_it_dies() -> None:
    life = UP
    for turn in range(50):
        life, step = next_step(life, ServerEvent.ENDED, turn, turn)
        assert step == ServerStep(ServerAction.START, 0.0)
        life, step = next_step(life, ServerEvent.ANSWERED, turn, turn)
        assert step.do is ServerAction.PROBE


@pytest.mark.parametrize("failure", [ServerEvent.ENDED, ServerEvent.START_FAILED])
def test_a_server_that_never_answers_starts_ever_later_up_to_a_limit(failure: ServerEvent) -> None:
    life, pauses = Life(), []
    for turn in range(10):
        life, step = next_step(life, failure, turn, turn)
        assert step.do is ServerAction.START
        pauses.append(step.after)
    assert pauses == [min(LONGEST_PAUSE, FIRST_PAUSE * 2**turn) for turn in range(10)]
    life, _ = next_step(life, ServerEvent.ANSWERED, 20.0, 20.0)
    assert next_step(life, ServerEvent.ENDED, 21.0, 21.0)[1].after == 0.0, (
        "one answer, and all is well"
    )


def test_silence_of_three_seconds_is_a_hang_and_one_answer_ends_it() -> None:
    life = UP
    for began in (10.0, 11.0):
        life, step = next_step(life, ServerEvent.SILENT, began, began + 1.0)
        assert step.do is ServerAction.PROBE
    assert next_step(life, ServerEvent.SILENT, 12.0, 13.0)[1].do is ServerAction.KILL
    life, _ = next_step(life, ServerEvent.ANSWERED, 12.0, 12.5)
    assert next_step(life, ServerEvent.SILENT, 13.0, 14.0)[1].do is ServerAction.PROBE


def test_a_supervisor_that_slept_itself_does_not_blame_the_server() -> None:
    life, step = next_step(UP, ServerEvent.SILENT, 10.0, 1000.0)
    assert step.do is ServerAction.PROBE
    assert next_step(life, ServerEvent.ANSWERED, 1000.0, 1000.1)[1].do is ServerAction.PROBE


@given(st.lists(st.tuples(st.sampled_from(ServerEvent), st.floats(0.0, 5.0)), max_size=40))
def test_only_long_silence_kills_and_every_end_is_followed_by_a_start(
    story: list[tuple[ServerEvent, float]],
) -> None:
    life, now = Life(), 0.0
    silent_from, silent = 0.0, 0
    for event, took in story:
        began, now = now, now + took
        life, step = next_step(life, event, began, now)
        if event is ServerEvent.SILENT:
            silent_from, silent = (silent_from, silent + 1) if silent else (began, 1)
        else:
            silent = 0
        is_hung = silent >= LEAST_PROBES and now - silent_from >= HUNG_AFTER
        ended = event in (ServerEvent.ENDED, ServerEvent.START_FAILED)
        assert step.do is (
            ServerAction.START if ended else ServerAction.KILL if is_hung else ServerAction.PROBE
        )
        assert 0.0 <= step.after <= LONGEST_PAUSE


def test_a_store_is_gone_where_a_bucket_that_was_there_is_not() -> None:
    room = 1 << 40
    known = frozenset({"KV_a", "OBJ_b"})
    assert judged(StoreFiles(known | {"OBJ_new"}, room), known, StoreState.FINE) is StoreState.FINE
    lost = StoreFiles(frozenset({"KV_a"}), room)
    assert judged(lost, known, StoreState.FINE) is StoreState.GONE
    assert judged(lost, known, StoreState.GONE) is StoreState.GONE
    assert judged(StoreFiles(frozenset(), 0), known, StoreState.FULL) is StoreState.GONE


def test_a_store_at_the_limit_is_not_full_and_not_full_in_turns() -> None:
    none: frozenset[str] = frozenset()
    between = StoreFiles(none, (FULL_BELOW + ROOM_ABOVE) // 2)
    assert judged(between, none, StoreState.FINE) is StoreState.FINE
    assert judged(between, none, StoreState.FULL) is StoreState.FULL
    assert judged(StoreFiles(none, FULL_BELOW - 1), none, StoreState.FINE) is StoreState.FULL
    assert judged(StoreFiles(none, ROOM_ABOVE), none, StoreState.FULL) is StoreState.FINE


def test_a_look_sees_buckets_and_room_also_where_the_folder_is_deleted(tmp_path: Path) -> None:
    streams = tmp_path / "store" / "jetstream" / "$G" / "streams"
    for name in ("KV_keys", "OBJ_files", "SWARM=lane"):
        (streams / name).mkdir(parents=True)
    seen = read_store(tmp_path / "store")
    assert seen.buckets == {"KV_keys", "OBJ_files"}
    gone = read_store(tmp_path / "nowhere" / "store")
    assert gone.buckets == frozenset()
    assert gone.free > 0
    assert seen.free > 0


class Vanishing(type(Path())):  # type: ignore[misc]
    """A folder that is deleted while it is walked."""

    def glob(self, pattern: str) -> Iterator[Path]:
        for path in Path(self).glob(pattern):
            yield path
            shutil.rmtree(self)
            raise FileNotFoundError(self)


def test_a_store_that_is_deleted_during_the_look_is_gone_and_the_look_ends(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    (store / "jetstream" / "$G" / "streams" / "KV_keys").mkdir(parents=True)
    known = read_store(store).buckets
    seen = read_store(Vanishing(store))
    assert judged(seen, known, StoreState.FINE) is StoreState.GONE
    assert seen.free > 0, "of the disk that held it"
