"""The guard tells what a camera usually does not show, and learns nothing of it."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.cameras.guard.artifact import CONTEXT, read, save
from nodes.cameras.guard.guard import CutGuard, GuardAction, GuardRule, GuardState, decide
from nodes.cameras.guard.statistics import fit, pooled
from swarm.errors import BadSignature, InvalidArgument, Untrusted
from swarm.security.identity import Identity
from swarm.security.signing import sign

CHANNELS = 16
MIX = np.random.default_rng(7).normal(0, 1, (4, CHANNELS))


def means(random: np.random.Generator, count: int, shift: float = 0.0) -> np.ndarray:
    """Of a camera whose pictures differ in four ways, [count, channels]."""
    ways = random.normal(0, 1, (count, 4)) @ MIX
    return ways + random.normal(shift, 0.1, (count, CHANNELS))


def cut(row: np.ndarray) -> np.ndarray:
    """A cut [1, channels, 2, 3] with these means."""
    swing = np.array([[1, -1, 2], [-2, 3, -3]]) * 0.5
    return (row[None, :, None, None] + swing).astype(np.float32)


def watching(random: np.random.Generator, rule: GuardRule | None = None) -> CutGuard:
    """A guard behind its warm-up, a second before frame 1000."""
    guard = CutGuard(rule or GuardRule())
    for at, row in enumerate(means(random, guard.rule.warm_up)):
        guard.look(cut(row), 1000.0 - guard.rule.warm_up + at)
    assert guard.verdict.state == "watching"
    return guard


def test_channels_are_pooled_whatever_the_size_of_the_cut() -> None:
    row = np.arange(1.0, CHANNELS + 1)
    assert pooled(cut(row)) == pytest.approx(row)
    assert pooled(np.tile(cut(row), (1, 1, 5, 5))) == pytest.approx(row)
    for wrong in (np.zeros(4), np.zeros((2, 4, 3)), np.zeros((1, 1, 9)), np.zeros((1, 4, 0))):
        with pytest.raises(InvalidArgument, match="channels"):
            pooled(wrong)


def test_nothing_is_told_before_the_warm_up_ends() -> None:
    """Frames of one moment count once: 30 frames a second give five a second."""
    random = np.random.default_rng(1)
    guard = CutGuard(GuardRule(warm_up=20))
    for at in range(100):
        verdict = guard.look(cut(means(random, 1, shift=50.0 * (at % 2))[0]), at / 30)
        assert (verdict.state, verdict.distance) == ("warming", None)
    assert 0.8 <= guard.verdict.warm_up < 1.0


def test_usual_pictures_raise_no_alarm_and_strange_ones_do() -> None:
    random = np.random.default_rng(2)
    guard = watching(random)
    usual = [guard.look(cut(row), 1000.0 + at) for at, row in enumerate(means(random, 300))]
    assert not any(verdict.is_alarmed for verdict in usual)
    strange = [guard.look(cut(row), 1300.0 + at) for at, row in enumerate(means(random, 3, 3.0))]
    assert [verdict.is_alarmed for verdict in strange] == [False, True, True]
    assert all(verdict.distance is not None and verdict.distance > 1 for verdict in strange)


def test_a_cut_with_numbers_that_are_none_is_strange() -> None:
    guard = watching(np.random.default_rng(3))
    for wrong in (nan, inf):
        verdict = guard.look(cut(np.full(CHANNELS, wrong)), 1000.0)
    assert verdict.is_alarmed
    assert verdict.distance == 1e6


def test_light_that_changes_slowly_is_followed() -> None:
    """At the end everything is far from where the guard began."""
    random = np.random.default_rng(4)
    guard, still = watching(random), watching(np.random.default_rng(4))
    fixed = still.fitted
    assert fixed is not None
    alarms = 0
    for at in range(3000):
        row = means(random, 1, shift=at * 0.0005)[0]
        alarms += guard.look(cut(row), 1000.0 + at).is_alarmed
    assert alarms == 0
    assert fixed.distance(np.full(CHANNELS, 1.5)) > fixed.threshold


def test_nothing_is_learned_while_alarmed() -> None:
    """A thousand strange frames later they are as strange as the first one."""
    random = np.random.default_rng(5)
    guard = watching(random)
    verdicts = [
        guard.look(cut(row), 1000.0 + at) for at, row in enumerate(means(random, 1000, 2.0))
    ]
    assert all(verdict.is_alarmed for verdict in verdicts[1:])
    first, last = np.array([[v.distance for v in part] for part in (verdicts[:50], verdicts[-50:])])
    assert last.mean() == pytest.approx(first.mean(), rel=0.2)
    after = [guard.look(cut(row), 2000.0 + at) for at, row in enumerate(means(random, 8))]
    assert [verdict.is_alarmed for verdict in after] == [True] * 4 + [False] * 4


@given(
    st.lists(st.one_of(st.floats(0, 3), st.just(nan), st.just(inf)), max_size=60),
    st.integers(1, 5),
    st.integers(1, 8),
)
def test_an_alarm_begins_and_ends_behind_as_many_frames_as_the_rule_says(
    distances: list[float], after: int, clear: int
) -> None:
    rule = GuardRule(alarm_after=after, clear_after=clear)
    state, seen = GuardState(), []
    for distance in distances:
        before, state = state, decide(rule, state, distance, 1.0)
        seen.append(not distance <= 1.0)
        if state.is_alarmed and not before.is_alarmed:
            assert seen[-after:] == [True] * after
        if before.is_alarmed and not state.is_alarmed:
            assert seen[-clear:] == [False] * clear


def test_settings_read_as_people_write_them() -> None:
    assert GuardRule.of("off") is None
    assert GuardRule.of("ood", "drop", 300) == GuardRule(GuardAction.DROP, 300)
    with pytest.raises(InvalidArgument, match="--guard"):
        GuardRule.of("ssim")


# --- the file ---------------------------------------------------------------------------


def test_what_was_learned_comes_back_from_its_file(tmp_path: Path) -> None:
    random, signer, path = np.random.default_rng(6), Identity.make(), tmp_path / "guard"
    fitted = fit(means(random, 225))
    save(fitted, path, "faces", "3", signer)
    again = read(path, "faces", "3", {signer.public}.__contains__)
    rows = means(random, 20, 1.0)
    assert [again.distance(row) for row in rows] == [fitted.distance(row) for row in rows]
    assert again.threshold == fitted.threshold


def test_only_a_trusted_and_whole_file_of_this_version_is_taken(tmp_path: Path) -> None:
    signer, path = Identity.make(), tmp_path / "guard"
    save(fit(means(np.random.default_rng(6), 40)), path, "faces", "3", signer)

    def trusted(key: str) -> bool:
        return key == signer.public

    with pytest.raises(Untrusted, match="does not trust"):
        read(path, "faces", "3", lambda key: False)
    with pytest.raises(InvalidArgument, match="faces@3, not of faces@4"):
        read(path, "faces", "4", trusted)
    whole = path.read_bytes()
    for at in range(len(whole) // 2, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises((BadSignature, InvalidArgument)):
            read(path, "faces", "3", trusted)
    for rubbish in (b"", b"\xc1", b"\x80", whole[:-1], whole + b"x"):
        path.write_bytes(rubbish)
        with pytest.raises(InvalidArgument, match="no file of a guard"):
            read(path, "faces", "3", trusted)


@pytest.mark.parametrize(
    "change",
    [
        {"threshold": nan},
        {"threshold": 0.0},
        {"mean": b"123"},
        {"mean": np.full(CHANNELS, inf).tobytes()},
        {"covariance": (-np.eye(CHANNELS)).tobytes()},
        {"covariance": np.eye(CHANNELS + 1).tobytes()},
        {"frames": 0},
        {"frames": None},
        {"v": 2},
    ],
)
def test_numbers_that_are_no_statistics_are_refused_though_they_are_signed(
    change: dict[str, object], tmp_path: Path
) -> None:
    signer, path = Identity.make(), tmp_path / "guard"
    save(fit(means(np.random.default_rng(6), 40)), path, "faces", "3", signer)
    inner = msgpack.unpackb(msgpack.unpackb(path.read_bytes())["payload"]) | change
    payload = msgpack.packb(inner)
    signature = sign(signer, CONTEXT, payload)
    outer = {"key": signer.public, "signature": signature, "payload": payload}
    path.write_bytes(msgpack.packb(outer))
    with pytest.raises(InvalidArgument):
        read(path, "faces", "3", lambda key: True)
