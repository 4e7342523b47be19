"""A wave goes through a fleet in its order and at its pace, and one bad device stops it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.upgrade.device import Phase, Record, WaveTurn
from nodes.upgrade.release import Release, is_whole, release_of
from nodes.upgrade.wave import (
    SILENT,
    DeviceStanding,
    DeviceStatement,
    Wave,
    WaveProgress,
    order_for,
    parse_wave,
    progress,
    steps,
    told,
    word,
)
from swarm.errors import InvalidArgument

WAVE = Wave("w", "1.1", canary=1, step=25.0, every=60.0, enrol=10.0)
TAKES = 20.0  # seconds of one device's upgrade


@dataclass
class Device:
    record: Record = field(default_factory=lambda: Record("1.0"))
    knows: float = 1.0
    phase_since: float = 0.0
    is_bad: bool = False
    at: float = 1.0

    def told(self) -> DeviceStatement:
        heard = word(self.record, "w", self.at - self.phase_since, self.at - self.knows)
        return told(json.loads(json.dumps(heard)), self.at)

    def lives(self, turn: WaveTurn, now: float) -> None:
        self.at = now
        record = self.record
        if record.phase is Phase.IDLE and turn is WaveTurn.GO and record.wave != "w":
            self.record = replace(record, phase=Phase.TRYING, target="1.1", wave="w")
            self.phase_since = now
        elif record.phase is Phase.TRYING and now - self.phase_since >= TAKES:
            self.phase_since = now
            back = Record("1.0", wave="w", refused="it hangs")
            self.record = back if self.is_bad else Record("1.1", before="1.0", wave="w")


@dataclass
class Fleet:
    devices: dict[str, Device]
    wave: Wave = WAVE
    began: list[tuple[float, str]] = field(default_factory=list)

    def words(self) -> dict[str, DeviceStatement]:
        return {name: device.told() for name, device in self.devices.items()}

    def runs(self, until: float, every: float = 1.0, burning: str = "") -> WaveProgress:
        now = 0.0
        while now < until:
            now += every
            heard = self.words()  # of the turn before: nobody sees the present
            how = progress(self.wave, 0.0, heard, now)
            for name, device in self.devices.items():
                was = device.record.phase
                device.lives(order_for(name, self.wave, how, burning).turn, now)
                if was is Phase.IDLE and device.record.phase is Phase.TRYING:
                    self.began.append((now, name))
        return progress(self.wave, 0.0, self.words(), now)


def fleet(count: int, bad: tuple[str, ...] = (), wave: Wave = WAVE) -> Fleet:
    names = [f"device-{number}" for number in range(count)]
    return Fleet({name: Device(is_bad=name in bad) for name in names}, wave)


def test_the_canary_goes_first_and_alone_and_then_shares_of_the_fleet() -> None:
    wave = fleet(12)
    how = wave.runs(1000.0)
    times = [when for when, _ in wave.began]
    groups = [times.count(when) for when in sorted(set(times))]
    assert (how.done, how.stopped, groups) == (True, "", [1, 3, 3, 3, 2])
    starts = sorted(set(times))
    apart = [later - before for before, later in pairwise(starts)]
    assert min(apart) >= TAKES + WAVE.every
    assert starts[0] >= WAVE.enrol


def test_a_bad_release_stops_the_wave_at_its_canary() -> None:
    names = tuple(f"device-{number}" for number in range(12))
    wave = fleet(12, bad=names)
    how = wave.runs(1000.0)
    assert len(wave.began) == 1
    assert wave.began[0][1] in how.stopped
    assert "it hangs" in how.stopped


def test_devices_that_are_on_their_way_when_it_stops_are_called_back() -> None:
    wave = fleet(9)
    wave.runs(WAVE.enrol + TAKES + WAVE.every + 8)
    stopped = replace(wave.wave, stopped="by hand")
    how = progress(stopped, 0.0, wave.words(), 100.0)
    turns = {order_for(name, stopped, how, "").turn for name in wave.devices}
    assert turns == {WaveTurn.WITHDRAWN}


def test_nobody_begins_while_an_objective_burns() -> None:
    wave = fleet(3)
    wave.runs(300.0, burning="digits: errors")
    assert wave.began == []


def test_a_silent_device_that_has_not_begun_holds_nobody_up() -> None:
    wave = fleet(4)
    first = progress(WAVE, 0.0, wave.words(), 5.0).order[0]
    silent = wave.devices.pop(first)
    silent.at, silent.knows, silent.phase_since = -SILENT, -SILENT, -SILENT
    how = progress(WAVE, 0.0, wave.words() | {first: silent.told()}, 11.0)
    assert first not in how.order
    assert len(how.order) == 3


def test_a_device_that_died_on_its_way_holds_the_next_group_up() -> None:
    wave = fleet(6)
    wave.runs(WAVE.enrol + 3)
    assert len(wave.began) == 1
    dead = wave.devices[wave.began[0][1]]
    dead.lives = lambda turn, now: None  # type: ignore[method-assign]
    how = wave.runs(5000.0)
    assert (len(wave.began), how.done, how.next_at) == (1, False, None)


def test_a_device_that_runs_the_release_already_is_in_no_group() -> None:
    wave = fleet(3)
    wave.devices["device-1"].record = Record("1.1", wave="earlier")
    assert wave.devices["device-1"].told().standing(WAVE) is DeviceStanding.THERE
    assert wave.runs(1000.0).done
    assert "device-1" not in [name for _, name in wave.began]


@given(st.integers(1, 40), st.integers(1, 5), st.floats(1, 100), st.floats(0, 100))
def test_never_more_go_at_a_time_than_the_wave_says(
    count: int, canary: int, step: float, every: float
) -> None:
    plan = replace(WAVE, canary=canary, step=step, every=every)
    wave = fleet(count, wave=plan)
    how = wave.runs(400.0, every=10.0)
    most = max(canary, -(-int(step * count * 1000) // 100_000), 1)
    times = [when for when, _ in wave.began]
    assert all(times.count(when) <= most + 1 for when in times)
    assert not how.stopped


@pytest.mark.parametrize(
    "change",
    [
        {"canary": 0},
        {"canary": True},
        {"step": 0},
        {"step": 101},
        {"every": -1},
        {"every": "5m"},
        {"guard": "luck"},
        {"id": "a.b"},
        {"version": "../x"},
        {"stopped": 1},
    ],
)
def test_a_wave_that_means_nothing_is_refused(change: dict[str, object]) -> None:
    assert parse_wave(WAVE.document()) == WAVE
    with pytest.raises(InvalidArgument):
        parse_wave(WAVE.document() | change)


def test_steps_are_a_share_and_a_time() -> None:
    assert steps("10%/5m") == (10.0, 300.0)
    for text in ("10%", "10/5m", "x%/5m", "1.2.3%/5m", ""):
        with pytest.raises(InvalidArgument):
            steps(text)


def test_a_release_knows_its_files_byte_for_byte(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    (tmp_path / ".hidden").write_bytes(b"")
    release = release_of(tmp_path, "1.1")
    assert list(release.files) == ["a.whl"]
    assert Release.from_json(release.to_json()) == release
    assert is_whole(tmp_path, "a.whl", release.files["a.whl"])
    (tmp_path / "a.whl").write_bytes(b"abd")
    assert not is_whole(tmp_path, "a.whl", release.files["a.whl"])


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"version": "1", "files": {}}',
        b'{"version": "1", "files": {"../x": ["00", 1]}}',
        b'{"version": "1", "files": {"x": ["00", 1]}}',
        b'{"version": "1/2", "files": {"x": ["' + b"0" * 64 + b'", 1]}}',
        b'{"version": "1", "files": {"x": ["' + b"0" * 64 + b'", -1]}}',
        b'{"version": "1", "files": {"x": ["' + b"0" * 64 + b'", 1e99]}}',
        b'{"version": "1", "extras": "a;b", "files": {"x": ["' + b"0" * 64 + b'", 1]}}',
    ],
)
def test_a_document_that_is_no_release_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidArgument):
        Release.from_json(document)
