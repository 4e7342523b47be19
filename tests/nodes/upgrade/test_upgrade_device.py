"""A device's way to a release, with its updater killed and its power cut wherever that can be.

The search below is exhaustive: each state that can be reached, by any number of cuts, is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.upgrade.device import (
    ActionKind,
    DeviceFacts,
    DeviceStep,
    Order,
    Phase,
    PhaseWatch,
    Record,
    RunningRelease,
    UpgradeAction,
    UpgradeLimits,
    WaveTurn,
    failed,
    step,
)
from swarm.errors import InvalidArgument

OLD, NEW, WAVE = "1.0", "1.1", "w"
LIMITS = UpgradeLimits(prepare=4, ready=3, proof=1)
TICK = 1.0  # seconds of a turn
SERVING, NONE = RunningRelease(True, True, OLD), RunningRelease()
MOST_TURNS = 80  # in which a device that is left alone comes to rest


class Release(Enum):
    """How the new one behaves."""

    GOOD = "is good"
    FORGED = "has a wrong signature"
    UNMAKEABLE = "cannot be installed"
    DIES = "ends by itself"
    HANGS = "never becomes ready"
    DIES_AS_MAIN = "ends by itself once it is main"
    HANGS_AS_MAIN = "never becomes ready as main"
    BURNS = "burns the objective"


@dataclass(frozen=True)
class World:
    """A device. disk: the record in its file; memory: the updater's own, None while it is dead.
    booting: the power came back, and nothing has served since."""

    disk: Record
    memory: tuple[Record, PhaseWatch] | None = None
    current: str = OLD
    main: RunningRelease = SERVING
    trial: RunningRelease = NONE
    fetched: bool = False
    made: bool = False
    turn: WaveTurn = WaveTurn.GO
    booting: bool = False

    @property
    def serves(self) -> bool:
        return self.main.ready or self.trial.ready

    def facts(self, release: Release) -> DeviceFacts:
        new = any(seen.ready and seen.version == NEW for seen in (self.main, self.trial))
        burning = "digits: errors" if new and release is Release.BURNS else ""
        return DeviceFacts(
            self.current, self.main, self.trial, self.fetched, self.made, True, burning
        )

    def killed(self) -> World:
        return replace(self, memory=None)

    def cut_off(self) -> World:
        """The power goes and comes: the boot starts main, by the link."""
        started = RunningRelease(True, False, self.current)
        return replace(self, memory=None, main=started, trial=RunningRelease(), booting=True)

    def later(self, release: Release) -> World:
        """A turn passes: what was started is ready, or not, by its nature."""
        main, trial = self._grown(self.main, True, release), self._grown(self.trial, False, release)
        world = replace(self, main=main, trial=trial)
        return replace(world, booting=world.booting and not world.serves)

    @staticmethod
    def _grown(seen: RunningRelease, is_main: bool, release: Release) -> RunningRelease:
        if not seen.running or seen.version == OLD:
            return replace(seen, ready=seen.running)
        if release is Release.DIES or (release is Release.DIES_AS_MAIN and is_main):
            return RunningRelease()
        hangs = release is Release.HANGS or (release is Release.HANGS_AS_MAIN and is_main)
        return replace(seen, ready=not hangs)


def done(world: World, action: UpgradeAction, release: Release) -> Iterator[World]:
    """The world in the midst of an action, and last behind it."""
    version = action.version
    match action.kind:
        case ActionKind.FETCH:
            yield replace(world, fetched=True)
        case ActionKind.MAKE:
            yield world  # half of it
            yield replace(world, made=True)
        case ActionKind.SWITCH:
            yield replace(world, current=version)
        case ActionKind.START_MAIN:
            yield replace(world, main=RunningRelease(True, False, world.current))
        case ActionKind.RESTART_MAIN:
            yield replace(world, main=RunningRelease())
            yield replace(world, main=RunningRelease(True, False, world.current))
        case ActionKind.START_TRIAL:
            yield replace(world, trial=RunningRelease())
            yield replace(world, trial=RunningRelease(True, False, version))
        case ActionKind.STOP_TRIAL:
            yield replace(world, trial=RunningRelease())


def turn(world: World, release: Release) -> list[World]:
    """All moments of one turn of the updater, the last one behind it."""
    record, watch = world.memory or (world.disk, PhaseWatch(0.0))
    order = Order(WAVE, NEW, world.turn)
    made = step(record, watch, world.facts(release), order, watch.at + TICK, LIMITS)
    fails = {Release.FORGED: ActionKind.FETCH, Release.UNMAKEABLE: ActionKind.MAKE}.get(release)
    if made.action.kind is fails:
        made = failed(made.record, made.watch, "it cannot be used")
    kept = replace(world, disk=made.record, memory=(made.record, _capped(made.watch)))
    moments = [kept, *done(kept, made.action, release)]
    return [*moments, moments[-1].later(release)]


def _capped(watch: PhaseWatch) -> PhaseWatch:
    """The clock starts anew, so that equal states are equal."""
    most = LIMITS.prepare + 2
    return PhaseWatch(0.0, min(watch.waited, most), min(watch.held, LIMITS.proof + 1))


def reachable(release: Release, withdraw: bool) -> set[World]:
    start = World(Record(good=OLD))
    seen, open_ = {start}, [start]
    while open_:
        world = open_.pop()
        moments = turn(world, release)
        found = [moments[-1]]
        for moment in [world, *moments]:
            found += [moment.killed(), moment.cut_off()]
            if withdraw:
                found.append(replace(moment.killed(), turn=WaveTurn.WITHDRAWN))
        for each in [*moments[:-1], *found]:
            assert each.serves or each.booting, f"nothing serves: {each}"
        for each in found:
            if each not in seen:
                seen.add(each)
                open_.append(each)
    return seen


def at_rest(world: World, release: Release) -> World:
    """The device left alone, until nothing changes."""
    for _ in range(MOST_TURNS):
        after = turn(world, release)[-1]
        if after == world:
            return world
        world = after
    raise AssertionError(f"it does not come to rest: {world}")


@pytest.mark.parametrize("release", Release, ids=lambda each: each.name.lower())
@pytest.mark.parametrize("withdraw", [False, True], ids=["", "withdrawn"])
def test_a_device_whose_updater_or_power_goes_at_any_step_serves_and_comes_to_rest(
    release: Release, withdraw: bool
) -> None:
    states = reachable(release, withdraw)
    assert len(states) > 10
    for world in states:
        rest = at_rest(world, release)
        good = rest.disk.good
        assert rest.disk.phase is Phase.IDLE
        assert (rest.current, rest.main, rest.trial) == (
            good,
            RunningRelease(True, True, good),
            RunningRelease(),
        )
        if release is not Release.GOOD:
            assert good == OLD
            assert rest.turn is WaveTurn.WITHDRAWN or rest.disk.refused
        elif rest.turn is not WaveTurn.WITHDRAWN and not rest.disk.refused:
            assert good == NEW


def test_a_good_release_that_nothing_disturbs_serves_at_the_end() -> None:
    rest = at_rest(World(Record(good=OLD)), Release.GOOD)
    assert (rest.disk.good, rest.disk.before, rest.disk.refused) == (NEW, OLD, "")


def test_a_lost_server_is_no_fault_of_a_release() -> None:
    record = Record(OLD, phase=Phase.TRYING, target=NEW, wave=WAVE, starts=1)
    trial = RunningRelease(True, False, NEW)
    away = DeviceFacts(OLD, RunningRelease(True, False, OLD), trial, True, True, reached=False)
    watch = PhaseWatch(0.0)
    for now in range(1, 1000):
        made = step(record, watch, away, None, float(now), LIMITS)
        record, watch = made.record, made.watch
    assert (record.phase, watch.waited) == (Phase.TRYING, 0.0)


def test_a_device_that_has_refused_a_release_waits_for_another_wave() -> None:
    record = Record(OLD, wave=WAVE, refused="it hangs")
    facts = DeviceFacts(OLD, RunningRelease(True, True, OLD), RunningRelease())
    again = step(record, PhaseWatch(0.0), facts, Order(WAVE, NEW, WaveTurn.GO), 1.0, LIMITS)
    assert again.record.phase is Phase.IDLE
    other = step(record, PhaseWatch(0.0), facts, Order("w2", NEW, WaveTurn.GO), 1.0, LIMITS)
    assert (other.record.phase, other.record.refused) == (Phase.PREPARING, "")


def test_a_device_whose_nodes_do_not_serve_begins_nothing() -> None:
    facts = DeviceFacts(OLD, RunningRelease(True, False, OLD), RunningRelease())
    made = step(Record(OLD), PhaseWatch(0.0), facts, Order(WAVE, NEW, WaveTurn.GO), 1.0, LIMITS)
    assert made == DeviceStep(Record(OLD), made.watch)


versions = st.sampled_from(["", OLD, NEW, "0.9"])
seens = st.builds(RunningRelease, st.booleans(), st.booleans(), versions)
records = st.builds(
    Record,
    good=st.sampled_from([OLD, NEW]),
    phase=st.sampled_from(Phase),
    target=st.sampled_from([OLD, NEW]),
    starts=st.integers(0, 3),
)


@given(records, st.builds(DeviceFacts, versions, seens, seens, st.booleans(), st.booleans()))
def test_main_that_serves_is_ended_only_while_trial_serves(
    record: Record, facts: DeviceFacts
) -> None:
    made = step(record, PhaseWatch(0.0), facts, None, 1.0, LIMITS)
    if made.action.kind is ActionKind.RESTART_MAIN and facts.main.ready:
        assert facts.trial.ready
    assert Record.of(made.record.document()) == made.record or not made.record.target


@pytest.mark.parametrize(
    "document", [None, {}, {"good": ""}, {"good": 1}, {"good": "1", "phase": "flying"}]
)
def test_a_file_that_is_no_record_is_refused(document: object) -> None:
    with pytest.raises(InvalidArgument):
        Record.of(document)
