"""What a node says to the probes of machines, by its state and its connection."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from support.waiting import eventually_now

from nodes.health.endpoint import asked, endpoint, probes
from nodes.health.health import PROBES, NodeHealth
from nodes.health.service_manager import ServiceManager

SERVING = NodeHealth("ready", "serving", connected=True, was_ready=True)


def answers(health: NodeHealth) -> dict[str, bool]:
    return {probe: health.verdict(probe).ok for probe in PROBES}


@pytest.mark.parametrize(
    ("health", "live", "ready", "started"),
    [
        (NodeHealth("waiting", "connecting", False, False), True, False, False),
        (NodeHealth("loading", "digits@1", True, False), True, False, False),
        (SERVING, True, True, True),
        (NodeHealth("ready", "serving", False, True), True, False, True),
        (NodeHealth("waiting", "a new version", True, True), True, False, True),
        (NodeHealth("draining", "finishing what runs", True, True), True, False, True),
        (NodeHealth("failed", "stage 1 stays out", True, True), False, False, True),
    ],
)
def test_a_node_is_ready_only_while_it_serves_and_is_ended_only_when_it_has_failed(
    health: NodeHealth, live: bool, ready: bool, started: bool
) -> None:
    assert answers(health) == {"livez": live, "readyz": ready, "startupz": started}


def test_a_status_document_tells_whether_its_node_was_ever_ready() -> None:
    document = {"state": "waiting", "detail": "no model"}
    assert not NodeHealth.of(document, True).verdict("startupz").ok
    assert NodeHealth.of(document | {"ready_ms": 412.0}, True).verdict("startupz").ok


async def test_a_socket_in_the_file_system_answers_each_probe(tmp_path: Path) -> None:
    path = tmp_path / "health"
    with endpoint(path, probes(asyncio.get_running_loop(), lambda: SERVING)):
        verdicts = [await asyncio.to_thread(asked, path, probe) for probe in PROBES]
        assert [verdict.ok for verdict in verdicts] == [True, True, True]
        assert "404" not in verdicts[0].reason
        assert not (await asyncio.to_thread(asked, path, "nothing")).ok
    assert not path.exists()
    assert not (await asyncio.to_thread(asked, path, "readyz")).ok


async def test_a_socket_that_a_killed_node_left_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "health"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with endpoint(path, probes(asyncio.get_running_loop(), lambda: SERVING)):
        assert (await asyncio.to_thread(asked, path, "readyz")).ok


def test_a_loop_that_hangs_fails_each_probe(tmp_path: Path) -> None:
    """Nobody turns the loop: no probe gets an answer from it."""
    loop = asyncio.new_event_loop()
    with endpoint(tmp_path / "health", probes(loop, lambda: SERVING)):
        verdict = asked(tmp_path / "health", "livez")
    loop.close()
    assert not verdict.ok
    assert "does not turn" in verdict.reason


async def test_the_service_manager_hears_that_a_node_is_ready_lives_and_stops(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "notify")
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(10)

        def hear() -> None:
            while "STOPPING=1" not in "".join(heard):
                heard.append(receiver.recv(4096).decode())

        thread = threading.Thread(target=hear, daemon=True)
        thread.start()
        manager = ServiceManager.of({"NOTIFY_SOCKET": path})
        assert manager is not None
        manager.changed({"event": "loading", "detail": "digits@1"})
        manager.changed({"event": "ready", "detail": "serving"})
        alive = asyncio.create_task(manager.run())
        await asyncio.to_thread(eventually_now, lambda: "WATCHDOG=1\n" in heard)
        manager.changed({"event": "draining", "detail": "line\nbreaks"})
        await asyncio.to_thread(thread.join, 10)
        alive.cancel()
        manager.close()
    assert heard[0] == "STATUS=loading: digits@1\n"
    assert heard[1] == "READY=1\nSTATUS=ready: serving\n"
    assert heard[-1] == "STOPPING=1\nSTATUS=draining: line breaks\n"


def test_without_a_service_manager_nobody_is_told() -> None:
    assert ServiceManager.of({}) is None
    assert ServiceManager.of({"NOTIFY_SOCKET": "vsock:2:1234"}) is None
