"""The compose file starts, by the lines at its head, as services of bubblewrap; one is killed, all
go down and come up again, and the mesh answers.

Not played: Prometheus and Grafana, whose images are not at hand (`tests/deploy/playing.py`).
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from asking import answers, operator, questions
from composing import head, services, variables
from playing import Machine, Mount, Service
from support.commands import ROOT
from support.meshes import split_digits
from support.waiting import eventually_now

from shards.manifest import write_dir

pytestmark = [pytest.mark.benchmark, pytest.mark.netns, pytest.mark.timeout(500)]
OPERATOR = 1000  # a user of the machine, who may not read what is root's


def test_the_compose_file_starts_as_its_head_says(tmp_path: Path, playground: Machine) -> None:
    home, volumes = tmp_path / "home", tmp_path / "volumes"
    volumes.mkdir()
    shutil.copytree(ROOT / "deploy", home / "deploy")
    container = home / "deploy" / "container"
    result = split_digits()
    write_dir(container / "digits-split", result.manifest, result.files)
    for path in (home, *home.rglob("*")):
        os.chown(path, OPERATOR, OPERATOR)
    asked, shown = questions(tmp_path, 100)
    person = operator(OPERATOR, Mount(home, "/home"), asked)
    keys, push = head(container / "compose.yaml")
    playground.inside("operator", person, f"cd deploy/container; {keys}")

    played = services(container / "compose.yaml", variables(container / "compose.yaml"), volumes)
    assert set(played) == {"nats", "shard-1", "shard-2", "shard-3", "fallback", "gateway"}
    playground.named({name: [name] for name in played})

    def up() -> None:
        for service in played.values():
            playground.start(service)
        eventually_now(
            lambda: (
                "Server is ready" in playground.running["nats"].log
                or playground.running["nats"].process.poll() is not None
            ),
            "the server",
        )
        assert playground.running["nats"].process.poll() is None, playground.running["nats"].log

    def ready(name: str) -> None:
        script = "swarm-node --check readyz --health /run/swarm/health"
        one = played[name]
        eventually_now(
            lambda: _ends_well(playground, name, one, script),
            f"{name} is ready:\n{playground.running[name].log[-3000:]}",
            90,
        )

    def answered() -> list[int]:
        return answers(playground, "gateway", person, "http://127.0.0.1:8000")

    up()
    # A published port is one of this machine; here it is the service's own.
    playground.inside("nats", person, f"cd deploy/container; {push}")
    for name in ("shard-1", "shard-2", "shard-3", "fallback", "gateway"):
        ready(name)
    assert answered() == shown

    playground.end("shard-2", number=signal.SIGKILL)
    assert answered() == shown, "by the fallback"
    playground.start(played["shard-2"])
    ready("shard-2")

    playground.end(*(name for name in played if name != "nats"))
    playground.end("nats")
    up()
    for name in ("shard-1", "shard-2", "shard-3", "gateway"):
        ready(name)
    assert answered() == shown, "without another push"


def _ends_well(playground: Machine, name: str, service: Service, script: str) -> bool:
    try:
        playground.inside(name, service, script)
    except AssertionError:
        return False
    return True
