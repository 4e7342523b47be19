"""A wave: in which order, and how fast, the devices of a fleet go to a release. Pure.

There is no master. Each device computes the same from the wave's document and from the last word of
each device, all by the clock of the server that stores them:

- whoever has seen the wave is in it; behind those who have begun, the others stand in the order of
  a hash of the wave's id and their names (rendezvous);
- first the canaries go, then groups of a share of the fleet, each once all before it are done, and
  have been so for a while;
- one device that refuses the release stops the wave, and so does an operator.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from nodes.upgrade.device import Order, Phase, Record, WaveTurn
from nodes.upgrade.release import checked_version
from swarm.errors import InvalidArgument
from swarm.subjects import TOKEN

ENROL = 15.0  # seconds in which devices see a new wave, before the first goes
SILENT = 90.0  # seconds after which a device that has not begun is left out
GUARDS = ("slo", "none")
_STEP = re.compile(r"([0-9.]+)%/([0-9.]+)(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Wave:
    """canary: devices that go first. step: percent of the fleet in each group behind them. every:
    seconds for which all before have to be done. guard: slo (no model's objective burns) or none.
    enrol: seconds before the first goes. stopped: why nobody goes any more, "" where some do."""

    id: str
    version: str
    canary: int = 1
    step: float = 10.0
    every: float = 300.0
    guard: str = "slo"
    enrol: float = ENROL
    stopped: str = ""

    def document(self) -> dict[str, Any]:
        """For the key store."""
        return {"v": 1} | {each.name: getattr(self, each.name) for each in fields(self)}


def parse_wave(document: object) -> Wave:
    """Of a parsed document. Raises `InvalidArgument`."""
    if not isinstance(document, Mapping):
        raise InvalidArgument("a wave must be an object")
    names = {each.name for each in fields(Wave)}
    wave = Wave(**({"id": "", "version": ""} | {k: v for k, v in document.items() if k in names}))
    checked_version(wave.version)
    if not isinstance(wave.id, str) or TOKEN.fullmatch(wave.id) is None:
        raise InvalidArgument("a wave's id is letters, digits, '_' and '-'")
    if type(wave.canary) is not int or wave.canary < 1:
        raise InvalidArgument(f"--canary {wave.canary!r}: one device at least goes first")
    for name, most in (("step", 100.0), ("every", 30 * 86400.0), ("enrol", 3600.0)):
        value = getattr(wave, name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= most or (name == "step" and not value):
            raise InvalidArgument(f"{name} {value!r} of a wave: up to {most:g}, as --step 10%/5m")
    if wave.guard not in GUARDS:
        raise InvalidArgument(f"--guard {wave.guard!r}: it is {' or '.join(GUARDS)}")
    if not isinstance(wave.stopped, str):
        raise InvalidArgument("why a wave was stopped is a text")
    return wave


def steps(text: str) -> tuple[float, float]:
    """Percent and seconds of `10%/5m`. Raises `InvalidArgument`."""
    match = _STEP.fullmatch(text.strip())
    try:
        assert match is not None
        return float(match[1]), float(match[2]) * _SECONDS[match[3]]
    except (AssertionError, ValueError):
        raise InvalidArgument(f"--step {text!r}: a share and a time, as 10%/5m") from None


class DeviceStanding(StrEnum):
    """How far a device is in a wave."""

    WAITING = "waiting"
    UNDER_WAY = "under way"
    DONE = "done"
    REFUSED = "refused"
    THERE = "there before"


@dataclass(frozen=True, slots=True)
class DeviceStatement:
    """A device's last word. version: that has proved itself there. seen: the last wave that it
    knows; wave: the last one that it took part in. Seconds by the server's clock: at, of the word;
    since, of its phase; knows, of its first look at the wave. holds: why it would not begin though
    it were its turn, "" where nothing keeps it."""

    version: str
    phase: Phase
    wave: str
    seen: str
    refused: str
    at: float
    since: float
    knows: float
    holds: str = ""

    def standing(self, wave: Wave) -> DeviceStanding:
        """In this wave."""
        if self.wave == wave.id:
            if self.refused:
                return DeviceStanding.REFUSED
            if self.phase is not Phase.IDLE:
                return DeviceStanding.UNDER_WAY
            if self.version == wave.version:
                return DeviceStanding.DONE
            return DeviceStanding.REFUSED  # it was stopped on its way
        return DeviceStanding.THERE if self.version == wave.version else DeviceStanding.WAITING


def word(
    record: Record, seen: str, in_phase: float, known_for: float, holds: str = ""
) -> dict[str, Any]:
    """What a device tells of itself. Seconds: in_phase, since its phase began; known_for, since it
    saw the wave."""
    return {
        "v": 1,
        "version": record.good,
        "phase": str(record.phase),
        "target": record.target,
        "wave": record.wave,
        "seen": seen,
        "refused": record.refused,
        "holds": holds,
        "in_phase_s": round(in_phase, 3),
        "known_for_s": round(known_for, 3),
    }


def told(document: object, at: float) -> DeviceStatement:
    """A device's word that was stored at this second of the server. Raises `InvalidArgument`."""
    if not isinstance(document, Mapping):
        raise InvalidArgument("a device's word must be an object")
    texts = [document.get(name, "") for name in ("version", "wave", "seen", "refused", "holds")]
    times = [document.get(name, 0.0) for name in ("in_phase_s", "known_for_s")]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidArgument("a device's word has texts")
    if not all(isinstance(t, int | float) and 0 <= t < 1e12 for t in times):
        raise InvalidArgument("a device's word has times")
    try:
        phase = Phase(document.get("phase", ""))
    except ValueError as error:
        raise InvalidArgument(f"a device's word: {error}") from None
    version, wave, seen, refused, holds = texts
    return DeviceStatement(
        version, phase, wave, seen, refused, at, at - times[0], at - times[1], holds
    )


@dataclass(frozen=True, slots=True)
class WaveProgress:
    """How a wave stands. order: its devices. open: how many of them may go now. next_at: when the
    next group may, seconds of the server; None while some of the present one are not done. stopped:
    why nobody goes, "" where some do. done: whether all devices are."""

    order: tuple[str, ...]
    open: int
    next_at: float | None
    stopped: str
    done: bool


def progress(
    wave: Wave, began: float, devices: Mapping[str, DeviceStatement], now: float
) -> WaveProgress:
    """began: when the wave was stored. now: both in seconds of the server."""
    places = {name: _place(wave, began, name, each, now) for name, each in devices.items()}
    order = sorted((place, name) for name, place in places.items() if place is not None)
    names = tuple(name for _, name in order)
    refusals = [n for n in names if devices[n].standing(wave) is DeviceStanding.REFUSED]
    # Those that were on their way when it stopped have no reason of their own.
    refusals.sort(key=lambda name: not devices[name].refused)
    stopped = wave.stopped
    if refusals and not stopped:
        stopped = f"{refusals[0]}: {devices[refusals[0]].refused or 'it went back'}"
    count, opens = len(names), began + wave.enrol
    open_, group = 0, wave.canary
    while now >= opens:
        open_ = min(count, open_ + group)
        before = [devices[name] for name in names[:open_]]
        if not before or any(each.standing(wave) is not DeviceStanding.DONE for each in before):
            opens = math.inf
            break
        if open_ == count:
            break
        opens = max(each.since for each in before) + wave.every
        group = max(1, math.ceil(wave.step / 100 * count))
    done = bool(names) and all(devices[n].standing(wave) is DeviceStanding.DONE for n in names)
    waits = None if math.isinf(opens) or done else opens
    return WaveProgress(names, open_, waits, stopped, done)


def _place(
    wave: Wave, began: float, name: str, each: DeviceStatement, now: float
) -> tuple[bool, bool, bytes] | None:
    """Sorts the devices; None for one that is not in the wave."""
    standing = each.standing(wave)
    if standing is DeviceStanding.THERE:
        return None
    waits = standing is DeviceStanding.WAITING
    if waits and (each.seen != wave.id or now - each.at > SILENT):
        return None
    # Whoever comes late stands behind those on whose order others rely.
    late = waits and each.knows > began + wave.enrol
    return waits, late, hashlib.sha256(f"{wave.id}/{name}".encode()).digest()


def order_for(name: str, wave: Wave, how: WaveProgress, burning: str) -> Order:
    """What the wave says to one device. burning: what spends an error budget too fast, "" for
    nothing."""
    if how.stopped:
        turn = WaveTurn.WITHDRAWN
    elif burning or name not in how.order[: how.open]:
        turn = WaveTurn.HOLD
    else:
        turn = WaveTurn.GO
    return Order(wave.id, wave.version, turn)
