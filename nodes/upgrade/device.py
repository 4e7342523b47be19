"""One device's way from one release to the next: pure.

A device runs its nodes as *main*, by the link `current`, which is also what a boot starts. Beside
them it can run the same roles once more as *trial*, from any release. So the way is:

    preparing     fetch the release, verify it, make an environment beside the present one
    trying        run it as trial; it has to become ready, and to stay so
    switching     `current` names it; main starts anew while trial covers for it, and has to stay
                  ready
    going-back    `current` names the release before; main goes back to it, under cover again

`step` compares what is wanted with what is seen, and names one action. An action that was cut off
is named again: so a device goes on from wherever the power went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from swarm.errors import InvalidArgument

MOST_STARTS = 3  # of a trial that ends by itself, in one attempt
REASON_LIMIT = 500  # characters


class Phase(StrEnum):
    """Where on its way a device is."""

    IDLE = "idle"
    PREPARING = "preparing"
    TRYING = "trying"
    SWITCHING = "switching"
    BACK = "going-back"


class ActionKind(StrEnum):
    """What is to be done now."""

    WAIT = "wait"
    FETCH = "fetch"
    MAKE = "make"
    START_MAIN = "start main"
    RESTART_MAIN = "restart main"
    START_TRIAL = "start trial"
    STOP_TRIAL = "stop trial"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class UpgradeAction:
    """version: of what is fetched, made, started as trial, or named by `current`."""

    kind: ActionKind
    version: str = ""


WAIT = UpgradeAction(ActionKind.WAIT)


@dataclass(frozen=True, slots=True)
class Record:
    """What a device keeps on its disk. good: the release that has proved itself here; before: the
    one that did before it. target: where it goes, "" nowhere. wave: the last one that it took part
    in. starts: of the trial in this attempt. refused: why it did not stay with the wave's release,
    "" where it did."""

    good: str
    before: str = ""
    phase: Phase = Phase.IDLE
    target: str = ""
    wave: str = ""
    starts: int = 0
    refused: str = ""

    def document(self) -> dict[str, Any]:
        """For the file, and for people."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def of(cls, document: object) -> Record:
        """Of a parsed document. Raises `InvalidArgument`."""
        if not isinstance(document, Mapping):
            raise InvalidArgument("an updater's record must be an object")
        names = {each.name for each in fields(cls)}
        values = {name: value for name, value in document.items() if name in names}
        texts = [value for name, value in values.items() if name != "starts"]
        starts = values.get("starts", 0)
        if type(starts) is not int or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument("an updater's record has texts, and a number of starts")
        try:
            values["phase"] = Phase(values.get("phase", "idle"))
        except ValueError as error:
            raise InvalidArgument(f"an updater's record: {error}") from None
        record = cls(**({"good": ""} | values))
        if not record.good or (record.phase is not Phase.IDLE and not record.target):
            raise InvalidArgument("an updater's record names no release")
        return record


@dataclass(frozen=True, slots=True)
class RunningRelease:
    """Main, or trial, as it runs. version: of all its processes, "" where they differ or none
    runs. ready: all of them are."""

    running: bool = False
    ready: bool = False
    version: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is seen now. fetched, made: whether the target's files, and its environment, are whole.
    current: the release that `current` names. reached: the mesh's server answers. burning: what
    spends a model's error budget too fast, "" for nothing."""

    current: str
    main: RunningRelease
    trial: RunningRelease
    fetched: bool = False
    made: bool = False
    reached: bool = True
    burning: str = ""


class WaveTurn(StrEnum):
    """What a wave says to one device."""

    GO = "go"
    HOLD = "hold"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Order:
    """A wave's word. version: the release that the wave is of."""

    wave: str
    version: str
    turn: WaveTurn


@dataclass(frozen=True, slots=True)
class UpgradeLimits:
    """Seconds. prepare: to fetch and make a release. ready: for its nodes to become ready. proof:
    for which they then have to stay so."""

    prepare: float = 1800.0
    ready: float = 180.0
    proof: float = 10.0


@dataclass(frozen=True, slots=True)
class PhaseWatch:
    """Seconds of the present phase: waited, without a sign of ready; held, ready at a stretch. They
    run only while a server is reached: its loss is no release's fault. at: of the last look."""

    at: float
    waited: float = 0.0
    held: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """record: to be kept before `action` is begun."""

    record: Record
    watch: PhaseWatch
    action: UpgradeAction = field(default=WAIT)


def step(
    record: Record,
    watch: PhaseWatch,
    facts: DeviceFacts,
    order: Order | None,
    now: float,
    limits: UpgradeLimits,
) -> DeviceStep:
    """What follows from what is seen. order: None where no wave is known."""
    watch = _looked(record, watch, facts, now)
    withdrawn = order is not None and order.wave == record.wave and order.turn is WaveTurn.WITHDRAWN
    match record.phase:
        case Phase.IDLE:
            return _idle(record, watch, facts, order)
        case Phase.PREPARING:
            if withdrawn:
                return _enter(record, Phase.BACK, watch)
            if watch.waited > limits.prepare:
                return failed(record, watch, f"not prepared within {limits.prepare:g} s")
            return _preparing(record, watch, facts)
        case Phase.TRYING:
            if withdrawn:
                return _enter(record, Phase.BACK, watch)
            return _trying(record, watch, facts, limits)
        case Phase.SWITCHING:
            return _switching(record, watch, facts, limits)
        case Phase.BACK:
            return _back(record, watch, facts, limits)


def failed(record: Record, watch: PhaseWatch, reason: str) -> DeviceStep:
    """The release is refused, for a reason that its fetching, making or running gave."""
    refused = replace(record, refused=reason[:REASON_LIMIT] or "no reason was given")
    return _enter(refused, Phase.BACK, watch)


def _looked(record: Record, watch: PhaseWatch, facts: DeviceFacts, now: float) -> PhaseWatch:
    """The clocks of now."""
    passed = max(0.0, now - watch.at) if facts.reached else 0.0
    judged = facts.trial if record.phase is Phase.TRYING else facts.main
    wanted = record.good if record.phase is Phase.BACK else record.target
    if judged.ready and judged.version == wanted:
        return PhaseWatch(now, watch.waited, watch.held + passed)
    return PhaseWatch(now, watch.waited + passed, 0.0)


def _enter(record: Record, phase: Phase, watch: PhaseWatch) -> DeviceStep:
    return DeviceStep(replace(record, phase=phase), PhaseWatch(watch.at))


def _idle(record: Record, watch: PhaseWatch, facts: DeviceFacts, order: Order | None) -> DeviceStep:
    action = _towards(record.good, facts, False)
    if action is not None:
        return DeviceStep(record, watch, action)
    if facts.trial.running and facts.main.ready:
        return DeviceStep(record, watch, UpgradeAction(ActionKind.STOP_TRIAL))
    if order is None or order.turn is not WaveTurn.GO or order.wave == record.wave:
        return DeviceStep(record, watch)
    if order.version == record.good or not facts.main.ready:
        return DeviceStep(record, watch)
    begun = replace(record, target=order.version, wave=order.wave, starts=0, refused="")
    return _enter(begun, Phase.PREPARING, watch)


def _preparing(record: Record, watch: PhaseWatch, facts: DeviceFacts) -> DeviceStep:
    action = _towards(record.good, facts, False)
    if action is not None:
        return DeviceStep(record, watch, action)
    if facts.made:
        return _enter(record, Phase.TRYING, watch)
    return DeviceStep(
        record,
        watch,
        UpgradeAction(ActionKind.MAKE if facts.fetched else ActionKind.FETCH, record.target),
    )


def _trying(
    record: Record, watch: PhaseWatch, facts: DeviceFacts, limits: UpgradeLimits
) -> DeviceStep:
    action = _towards(record.good, facts, False)
    if action is not None:
        return DeviceStep(record, watch, action)
    if facts.burning:
        return failed(record, watch, f"while it was tried: {facts.burning}")
    if not facts.made:  # its folder was lost meanwhile
        return _enter(record, Phase.PREPARING, watch)
    if not facts.trial.running or facts.trial.version != record.target:
        return _start_trial(record, watch)
    if watch.waited > limits.ready:
        return failed(record, watch, f"not ready within {limits.ready:g} s")
    if watch.held >= limits.proof and facts.trial.ready:
        return _enter(record, Phase.SWITCHING, watch)
    return DeviceStep(record, watch)


def _start_trial(record: Record, watch: PhaseWatch) -> DeviceStep:
    if record.starts >= MOST_STARTS:
        return failed(record, watch, f"its nodes ended by themselves, {record.starts} times")
    started = replace(record, starts=record.starts + 1)
    return DeviceStep(started, watch, UpgradeAction(ActionKind.START_TRIAL, record.target))


def _switching(
    record: Record, watch: PhaseWatch, facts: DeviceFacts, limits: UpgradeLimits
) -> DeviceStep:
    if watch.waited > limits.ready:
        return failed(record, watch, f"not ready within {limits.ready:g} s of the switch")
    if facts.burning:
        return failed(record, watch, f"after the switch: {facts.burning}")
    # A trial that is gone stands for a start of the device in between, or for a bad release.
    needs_cover = facts.main.version != record.target and facts.main.ready
    if needs_cover and (not facts.trial.running or facts.trial.version != record.target):
        return _start_trial(record, watch)
    if needs_cover and not facts.trial.ready:
        return DeviceStep(record, watch)
    action = _towards(record.target, facts, False)
    if action is not None:
        return DeviceStep(record, watch, action)
    if watch.held < limits.proof or not facts.main.ready:
        return DeviceStep(record, watch)
    proved = replace(record, good=record.target, before=record.good, target="")
    return _enter(proved, Phase.IDLE, watch)


def _back(
    record: Record, watch: PhaseWatch, facts: DeviceFacts, limits: UpgradeLimits
) -> DeviceStep:
    action = _towards(record.good, facts, watch.waited > limits.ready)
    if action is not None:
        return DeviceStep(record, watch, action)
    if not facts.main.ready:
        return DeviceStep(record, watch)
    if facts.trial.running:
        return DeviceStep(record, watch, UpgradeAction(ActionKind.STOP_TRIAL))
    return _enter(replace(record, target=""), Phase.IDLE, watch)


def _towards(version: str, facts: DeviceFacts, overdue: bool) -> UpgradeAction | None:
    """What brings main to a release; None where it runs it. While main serves it is ended only
    where trial serves too, or where that is overdue."""
    if facts.current != version:
        return UpgradeAction(ActionKind.SWITCH, version)
    if not facts.main.running:
        return UpgradeAction(ActionKind.START_MAIN)
    if facts.main.version == version:
        return None
    if facts.trial.ready or not facts.main.ready or overdue:
        return UpgradeAction(ActionKind.RESTART_MAIN)
    if facts.trial.running and facts.trial.version == version:
        return WAIT
    return UpgradeAction(ActionKind.START_TRIAL, version)
