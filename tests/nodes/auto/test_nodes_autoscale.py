"""`swarm up --autoscale`: processes follow the nodes that stages want, within their number."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.meshes import mesh_of, split_digits
from support.waiting import eventually

from nodes.auto.autoscale import Autoscale, Move, moves, wanted_of
from nodes.up.mesh import BROKEN_FROM, MOST_STATUSES, LocalMesh, push
from nodes.up.restarts import Past
from nodes.up.supervisor import NodeProcess, Supervisor
from shards.zoo import digits_heldout
from swarm.link import LinkMessage

NUMBERS = st.dictionaries(st.integers(1, 5), st.integers(0, 9))


@given(NUMBERS, st.integers(1, 3), NUMBERS, st.integers(0, 12))
def test_no_stage_has_fewer_than_its_own_and_all_together_no_more_than_allowed(
    wanted: dict[int, int], base: int, extra: dict[int, int], most: int
) -> None:
    extra = {stage: min(number, most // 5) for stage, number in extra.items()}
    for _ in range(60):
        found = moves({s: (n, "") for s, n in wanted.items()}, base, extra, most)
        assert len({move.stage for move in found}) == len(found)
        for move in found:
            extra[move.stage] = extra.get(move.stage, 0) + move.by
        assert min(extra.values(), default=0) >= 0
        assert sum(extra.values()) <= most
        if not found:
            break
    else:
        pytest.fail("it comes to no rest")
    lacks = [s for s, n in wanted.items() if n > base + extra.get(s, 0)]
    assert not lacks or sum(extra.values()) == most


def told(version: str, stage: int, replicas: int, model: str = "m") -> dict[str, Any]:
    row = {"model": model, "version": version, "stage": stage, "nodes": 1, "busy": 0.9}
    return {"wanted": [row | {"replicas": replicas}]}


def test_the_most_that_any_node_tells_counts_and_other_models_do_not() -> None:
    statuses = [told("1", 1, 1), told("1", 1, 2), told("1", 1, 9, "other"), {}]
    assert wanted_of(statuses, "m") == {1: (2, "each of 1 computes 90% of the time")}
    assert moves(wanted_of(statuses, "m"), 1, {}, 3) == [
        Move(1, 1, "each of 1 computes 90% of the time")
    ]


def test_a_version_that_was_promoted_meanwhile_counts() -> None:
    assert wanted_of([told("2", 1, 3)], "m") == {1: (3, "each of 1 computes 90% of the time")}


@pytest.mark.parametrize(
    "wanted",
    [None, 7, [None], [{}], [{"model": "m"}], [told("1", 1, 2)["wanted"][0] | {"stage": [1]}]],
)
def test_a_malformed_status_asks_for_nothing(wanted: object) -> None:
    assert wanted_of([{"wanted": wanted}], "m") == {}


async def test_a_process_that_does_not_become_ready_gives_its_place_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodes.auto.autoscale.LOOK_EVERY", 0.0)
    serves = NodeProcess("shard-1", [])
    monkeypatch.setattr(NodeProcess, "alive", property(lambda self: self is serves))
    supervisor = Supervisor([serves])
    said: list[str] = []

    def start(role: str, model: str, *extra: str) -> NodeProcess:
        supervisor.nodes.append(NodeProcess(role, [], past=Past(failures=BROKEN_FROM)))
        return supervisor.nodes[-1]

    def status_of(node: NodeProcess) -> dict[str, Any] | None:
        return told("1", 1, 2) if node is serves else None

    local: Any = SimpleNamespace(supervisor=supervisor, start=start, status_of=status_of)
    task = asyncio.create_task(Autoscale(local, "m", 1, 1, said.append).run())
    await eventually(lambda: len(said) == 2, "it is given up")
    await eventually(lambda: supervisor.nodes == [serves], "it is forgotten")
    await asyncio.sleep(0.05)
    task.cancel()
    assert [line.partition(":")[0] for line in said] == ["stage 1"] * 2, "no other one starts soon"
    assert "does not become ready" in said[1]


def test_a_status_that_names_no_process_is_not_kept() -> None:
    local = LocalMesh("", "m", None, Supervisor(), None, [], None)  # type: ignore[arg-type]
    data = b'{"node": "n", "state": "starting"}'
    local.take_status(LinkMessage("swarm.m.status.n", "", None, data))
    assert local.status_of(NodeProcess("shard-1", [])) is None


class Deaf(NodeProcess):
    """A process that is ready, and hears of no signal but SIGKILL."""

    heard: tuple[signal.Signals, ...] = ()

    @property
    def alive(self) -> bool:
        return signal.SIGKILL not in self.heard

    def signal(self, number: signal.Signals) -> None:
        self.heard += (number,)


async def test_a_process_of_a_stage_that_is_no_more_ends_even_if_it_hangs_in_its_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOOK_EVERY", "STOP_TIMEOUT", "UNTOLD_FOR"):
        monkeypatch.setattr(f"nodes.auto.autoscale.{name}", 0.0)
    serves, extra, stages = Deaf("shard-1", []), Deaf("shard-2", []), [1, 2]
    supervisor = Supervisor([serves])

    def start(role: str, model: str, *more: str) -> NodeProcess:
        supervisor.nodes.append(extra)
        return extra

    def status_of(node: NodeProcess) -> dict[str, Any]:
        rows = [told("1", stage, stage)["wanted"][0] for stage in stages]
        return {"state": "ready" if node is serves else "waiting", "wanted": rows}

    local: Any = SimpleNamespace(supervisor=supervisor, start=start, status_of=status_of)
    said: list[str] = []
    task = asyncio.create_task(Autoscale(local, "m", 1, 1, said.append).run())
    await eventually(lambda: extra in supervisor.nodes, "a node more")
    stages.remove(2)  # a version without a second stage was promoted
    await eventually(lambda: supervisor.nodes == [serves], "it is forgotten")
    task.cancel()
    assert extra.heard[:1] == (signal.SIGTERM,)
    assert "no version that serves has it any more" in said[-1]


def test_the_statuses_of_a_mesh_whose_processes_start_again_for_ever_are_bounded() -> None:
    node = NodeProcess("shard-1", [])
    local = LocalMesh("", "m", None, Supervisor([node]), None, [], None)  # type: ignore[arg-type]
    for n in range(MOST_STATUSES + 10):
        status = {"node": f"n{n}", "state": "ready", "pid": node.pid}
        local.take_status(
            LinkMessage(f"swarm.m.status.n{n}", "", None, json.dumps(status).encode())
        )
    assert len(local.statuses) == MOST_STATUSES
    assert (local.status_of(node) or {})["node"] == f"n{MOST_STATUSES + 9}"


@pytest.mark.parametrize("is_here", [True, False])
def test_a_process_of_another_host_with_the_same_id_is_another_one(is_here: bool) -> None:
    node = NodeProcess("shard-1", [])
    local = LocalMesh("", "m", None, Supervisor([node]), None, [], None)  # type: ignore[arg-type]
    host = socket.gethostname() if is_here else "elsewhere"
    status = {"node": "n", "state": "ready", "pid": node.pid, "host": host}
    local.take_status(LinkMessage("swarm.m.status.n", "", None, json.dumps(status).encode()))
    assert (node.was_ready, local.status_of(node) is not None) == (is_here, is_here)


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark
async def test_a_stage_under_load_gets_a_node_and_no_request_is_lost_when_it_goes() -> None:
    """The load is told by statuses that are made up; the processes and requests are real."""
    async with mesh_of() as local:
        await push(local, split_digits().manifest.to_json(), split_digits().files)
        for stage in (1, 2, 3):
            local.start(f"shard-{stage}", "digits")
        await local.ready()
        said: list[str] = []
        scale = Autoscale(local, "digits", 1, 2, said.append)
        images, _ = digits_heldout()
        done: list[int] = []

        async def ask() -> None:
            for number in range(100_000):
                image = {"image": images[number % 50 : number % 50 + 1]}
                await local.mesh.infer("digits", image, budget=10.0)
                done.append(number)

        def tell(replicas: int) -> None:
            for node in local.supervisor.nodes:
                status = local.status_of(node)
                if status is not None and node.role == "shard-2":
                    row = {"model": "digits", "version": "1", "stage": 2, "nodes": 1, "busy": 0.9}
                    status["wanted"] = [row | {"replicas": replicas}]

        async def keep(replicas: int) -> None:
            while True:
                tell(replicas)
                await asyncio.sleep(0.02)

        def twos() -> int:
            return sum(n.role == "shard-2" and n.alive for n in local.supervisor.nodes)

        async with asyncio.TaskGroup() as group:
            work = [group.create_task(scale.run()), group.create_task(ask())]
            high = group.create_task(keep(2))
            await eventually(lambda: twos() == 2, "a node more")
            await local.ready()
            high.cancel()
            low = group.create_task(keep(1))
            await eventually(lambda: twos() == 1, "a node less")
            before = len(done)
            await eventually(lambda: len(done) > before + 20, "requests go on")
            for task in (*work, low):
                task.cancel()
        assert [line.split(":")[1] for line in said][:2] == [" a node more (2)", " a node less (1)"]


def test_a_wish_that_falls_while_a_process_starts_does_not_end_it() -> None:
    wanted = {1: (1, "each of 1 computes 60% of the time")}
    assert moves(wanted, 1, {1: 1}, 2, starting={1}) == []
    assert [move.by for move in moves(wanted, 1, {1: 1}, 2)] == [-1]
