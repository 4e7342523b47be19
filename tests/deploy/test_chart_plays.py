"""The pods that the chart renders start, with Secrets and volumes as a kubelet lays them, and
answer; one is killed, all go down and come up with the store that they had.

Not played: a scheduler, an API server, kube-proxy, NetworkPolicies, limits (`playing.py`).
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from asking import answers, operator, questions
from charts import render
from kubelet import Kubelet
from playing import Machine, Mount, Service
from support.meshes import split_digits
from support.waiting import eventually_now

from shards.manifest import write_dir

pytestmark = [pytest.mark.benchmark, pytest.mark.netns, pytest.mark.timeout(500)]
SECURED = ("credentials.secret=mesh", "nats.secret=server", "nats.maxPayload=24MB")
# The first that a server says, before TLS.
GREETING = "import socket; print(socket.create_connection(('x-nats', 4222), 5).recv(4096).decode())"
ROLES = ("shard-1", "shard-2", "shard-3", "fallback", "gateway", "operator")
SERVER, GATEWAY = "x-nats-0", "x-gateway-0"


def secrets_of(home: Path, playground: Machine, person: Service) -> dict[str, dict[str, bytes]]:
    """What `kubectl create secret generic … --from-file` makes of the files of `swarm auth`."""
    add = 'swarm auth add "$role" --role "$role" --model digits --auth auth'
    playground.inside(
        "operator",
        person,
        "swarm auth init auth; swarm auth server server --auth auth --tls x-nats\n"
        f"for role in {' '.join(ROLES)}; do {add}; done\n"
        "swarm keys new; swarm keys show > trusted",
    )
    server = {
        file.name: file.read_bytes() for file in (home / "server").iterdir() if file.is_file()
    }
    mesh = {file.name: file.read_bytes() for file in (home / "auth" / "users").glob("*.creds")}
    mesh |= {"ca.pem": server["ca.pem"], "trusted": (home / "trusted").read_bytes()}
    return {"server": server, "mesh": mesh}


@pytest.mark.parametrize("settings", [(), SECURED], ids=["as it is", "secured"])
def test_the_pods_of_the_chart_start_and_serve(
    helm: Path, tmp_path: Path, playground: Machine, settings: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    result = split_digits()
    write_dir(home / "digits-split", result.manifest, result.files)
    asked, shown = questions(tmp_path, 100)
    person = operator(0, Mount(home, "/home"), asked)
    secrets = secrets_of(home, playground, person) if settings else {}
    kubelet = Kubelet(render(helm, *settings), secrets, tmp_path / "volumes")
    assert {SERVER, GATEWAY} <= set(kubelet.pods)
    playground.named(kubelet.names())

    def ready(*names: str) -> None:
        for name in names:
            assert name in playground.running
            eventually_now(
                lambda name=name: (
                    playground.running[name].process.poll() is not None
                    or kubelet.is_ready(playground, name)
                ),
                f"{name} is ready",
                90,
            )
            played = playground.running[name]
            assert played.process.poll() is None, f"{name}:\n{played.log[-3000:]}"

    def up() -> None:
        for pod in kubelet.pods.values():
            playground.start(pod.service)

    def answered() -> list[int]:
        return answers(playground, SERVER, person, "http://x-gateway:8000")

    up()
    ready(SERVER)
    access = "--tls-ca server/ca.pem --credentials auth/users/operator.creds" if settings else ""
    scheme = "tls" if settings else "nats"
    push = f"swarm model push digits-split --nats {scheme}://x-nats:4222 {access}"
    playground.inside(SERVER, person, push)
    ready(*kubelet.pods)
    assert answered() == shown
    greeting = playground.inside(SERVER, person, f'python3 -c "{GREETING}"')
    assert (
        json.loads(greeting.removeprefix("INFO "))["max_payload"] == (24 if settings else 16) << 20
    )

    playground.end("x-shard-2-0", signal.SIGKILL)
    assert answered() == shown, "by the fallback"
    playground.start(kubelet.pods["x-shard-2-0"].service)
    ready("x-shard-2-0")

    for name in reversed(kubelet.pods):
        playground.end(name)
    up()
    ready(*kubelet.pods)
    assert answered() == shown, "without another push"
