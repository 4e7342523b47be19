"""The pods that the chart renders start, with Secrets and volumes as a kubelet lays them, and
answer; some are killed, all go down and come up with the store that they had.

Not played: a scheduler, an API server, kube-proxy, NetworkPolicies, limits (`playing.py`).
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import cv2
import pytest
from asking import Load, answers, operator, questions
from charts import render
from cluster import Cluster
from kubelet import Kubelet
from playing import Machine, Mount, Service
from support.camera import scene
from support.camera_mesh import red_detector
from support.meshes import split_digits

from nodes.cli.model_split import read_source
from shards.cameras.wish import Wish
from shards.manifest import write_dir
from shards.split.split import SplitResult, split

pytestmark = [pytest.mark.netns, pytest.mark.timeout(500)]
# The first that a server says, before TLS.
GREETING = "import socket; print(socket.create_connection(('x-nats', 4222), 5).recv(4096).decode())"
STREAMS = "http://127.0.0.1:8222/jsz?accounts=1&streams=1&config=1"
ROLES = ("shard-1", "shard-2", "shard-3", "fallback", "gateway", "edge", "operator")
OUTSIDE = "outside"
OUTSIDE_OPEN = {"enabled": False, "url": f"nats://{OUTSIDE}:4222"}
OUTSIDE_CLOSED = {"enabled": False, "url": f"tls://{OUTSIDE}:4222"}
# The gateway lists a model once it has heard of a node of each stage: within a second of that.
CHAT = """
import json, sys, time, urllib.request
began = time.monotonic()
while not json.load(urllib.request.urlopen(sys.argv[1] + "/v1/models", timeout=30))["data"]:
    assert time.monotonic() < began + 30
    time.sleep(0.1)
body = {"model": "toy", "max_tokens": 12, "temperature": 0,
        "messages": [{"role": "user", "content": "What is a list?"}]}
sent = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(),
                              {"Content-Type": "application/json"})
answer = json.load(urllib.request.urlopen(sent, timeout=30))
print(answer["choices"][0]["message"]["content"])
"""
# From which cameras the next 30 results are, and which statuses they have.
HEAR = """
import asyncio, json, sys
import swarm

async def main():
    found = []
    access = {"tls_ca": "server/ca.pem", "credentials": "auth/users/operator.creds"}
    async with swarm.connect(sys.argv[1], **access) as mesh:
        mesh.link.subscribe(mesh.subjects.results("hall"), found.append)
        async with asyncio.timeout(60):
            while len(found) < 30:
                await asyncio.sleep(0.1)
    told = [json.loads(bytes(message.data)) for message in found]
    print(*{each["source"] for each in told}, *{each["status"] for each in told})

asyncio.run(main())
"""
SERVER, SHARD = "x-nats-0", "x-shard-2-a-0"
SECURED = "--tls-ca server/ca.pem --credentials auth/users/operator.creds"
NEWER = "0.1.1"


class People:
    """An operator with a folder and a model, and what requests shall be answered."""

    def __init__(self, folder: Path, playground: Machine, kubectl: Path) -> None:
        self._folder = folder
        self._kubectl = kubectl
        self.home = folder / "home"
        self.home.mkdir()
        asked, self.shown = questions(folder, 100)
        self.operator: Service = operator(0, Mount(self.home, "/home"), asked)
        self.playground = playground

    def has(self, result: SplitResult) -> None:
        write_dir(self.home / f"{result.manifest.model}-split", result.manifest, result.files)

    def do(self, script: str, where: str = SERVER) -> str:
        return self.playground.inside(where, self.operator, script)

    def starts_a_server(self, *files: Mount) -> None:
        """Outside of the chart: of the files of `swarm auth`, or one that anybody may use."""
        folder = self._folder / "outside"
        folder.mkdir()
        words = ["-js", "-sd", "/var/lib/nats"] if not files else ["-c", "nats-server.conf"]
        mounts = [Mount(folder, "/var/lib/nats"), *files]
        server = Service(OUTSIDE, "nats", words, folder="/etc/nats" if files else "", mounts=mounts)
        self.playground.start(server)

    def secrets(self, *hosts: str, model: str = "digits") -> dict[str, dict[str, bytes]]:
        """Of the files of `swarm auth`. hosts: names of the servers."""
        names = " ".join(f"--tls '{host}'" for host in hosts)
        add = f'swarm auth add "$role" --role "$role" --model {model} --auth auth'
        self.do(
            f"swarm auth init auth; swarm auth server server --auth auth {names}\n"
            f"for role in {' '.join(ROLES)}; do {add}; done\n"
            "swarm keys new; swarm keys show > trusted"
        )
        self.do("mkdir mesh; cp auth/users/*.creds server/ca.pem trusted mesh")
        return {"server": self._secret("server"), "mesh": self._secret("mesh")}

    def callers(self) -> tuple[dict[str, bytes], str]:
        """The Secret of a gateway, and the key of somebody who may ask it."""
        self.do(
            "swarm auth server of-gateway --auth auth --tls x-gateway; mkdir callers\n"
            "cp of-gateway/server.pem callers/tls.crt; cp of-gateway/server.key callers/tls.key\n"
            "cp of-gateway/ca.pem gateway.pem"
        )
        made = json.loads(self.do("swarm keys gateway robot callers/callers.toml --json"))
        return self._secret("callers"), made["key"]

    def _secret(self, folder: str) -> dict[str, bytes]:
        """The data of a Secret, as kubectl makes it."""
        words = ["create", "secret", "generic", "x", f"--from-file={self.home / folder}"]
        made = subprocess.run(
            [self._kubectl, *words, "--dry-run=client", "--output=json"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        data = json.loads(made.stdout)["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    def answers(self, url: str = "http://x-gateway:8000", key: str = "") -> list[int]:
        return answers(self.playground, SERVER, self.operator, url, key)


@pytest.fixture
def people(tmp_path: Path, playground: Machine, helm: Path) -> People:
    return People(tmp_path, playground, helm.with_name("kubectl"))


@pytest.mark.benchmark
def test_the_chart_as_it_is_serves_is_upgraded_under_load_and_comes_back_with_its_store(
    helm: Path, tmp_path: Path, playground: Machine, people: People
) -> None:
    people.has(split_digits())
    volumes = tmp_path / "volumes"
    newer = Kubelet(render(helm, f"image.tag={NEWER}"), {}, volumes, "b")
    cluster = Cluster(playground, Kubelet(render(helm), {}, volumes))
    playground.named(cluster.kubelet.names())
    cluster.up()
    cluster.ready(SERVER)
    people.do("swarm model push digits-split --nats nats://x-nats:4222")
    cluster.ready()
    for name in cluster.kubelet.pods:
        assert cluster.says_yes(name, "startup")
        assert cluster.says_yes(name, "liveness")
    assert people.answers() == people.shown
    assert greeting(people)["max_payload"] == 16 << 20
    assert greeting(people)["version"].startswith("2.12.")

    cluster.kill(SHARD)
    assert people.answers() == people.shown, "by the fallback"
    cluster.start(SHARD)
    cluster.ready(SHARD)

    hung = playground.running[SHARD]
    hung.send(signal.SIGSTOP)
    assert not cluster.says_yes(SHARD, "liveness")
    hung.send(signal.SIGCONT)
    cluster.ready(SHARD)

    load = Load(playground, SERVER, people.operator, tmp_path / "load")
    cluster.asks(load)
    with load.steady(people.shown):
        cluster.upgrade(newer, load)
    playground.named(cluster.kubelet.names())
    assert NEWER in playground.beside(playground.running["x-shard-2-b-0"], "swarm version")

    cluster.down()
    cluster.up()
    cluster.ready()
    assert people.answers() == people.shown, "without another push"


@pytest.mark.benchmark
def test_the_secured_chart_with_three_servers_loses_one_of_them_and_a_node(
    helm: Path, tmp_path: Path, playground: Machine, people: People
) -> None:
    people.has(split_digits())
    settings = ("credentials.secret=mesh", "nats.secret=server", "gateway.secret=callers")
    settings += ("nats.maxPayload=24MB", "nats.replicas=3", "nats.image=nats:2.15-alpine")
    servers = [f"x-nats-{number}" for number in range(3)]
    secrets = people.secrets("x-nats", *(f"{server}.x-nats" for server in servers))
    secrets["callers"], key = people.callers()
    cluster = Cluster(playground, Kubelet(render(helm, *settings), secrets, tmp_path / "volumes"))
    assert set(servers) < set(cluster.kubelet.pods)
    playground.named(cluster.kubelet.names())

    def answered() -> list[int]:
        return people.answers("https://x-gateway:8000", key)

    cluster.up()
    cluster.ready(*servers)
    people.do(f"swarm model push digits-split --nats tls://x-nats:4222 {SECURED}")
    cluster.ready()
    assert answered() == people.shown
    assert greeting(people)["max_payload"] == 24 << 20
    assert copies(people) == {3}

    cluster.kill("x-nats-1")
    assert answered() == people.shown, "by the other servers"
    cluster.start("x-nats-1")
    cluster.ready("x-nats-1")
    cluster.kill(SHARD)
    assert answered() == people.shown, "by the fallback"
    cluster.start(SHARD)
    cluster.ready(SHARD)
    playground.end("x-nats-0")
    assert answered() == people.shown, "without the server that was told to end"
    cluster.start("x-nats-0")
    cluster.ready("x-nats-0")

    cluster.down()
    cluster.up()
    cluster.ready()
    assert answered() == people.shown, "without another push"


@pytest.mark.weekly
def test_a_language_model_is_served_by_images_of_its_own_at_a_server_outside(
    helm: Path, tmp_path: Path, playground: Machine, people: People
) -> None:
    model, language = read_source("toy")
    people.has(split(model, name="toy", stages=2, hints=language))
    values = {"model": "toy", "language": True, "stages": [{}, {}], "nats": OUTSIDE_OPEN}
    values |= {"fallback": {"replicas": 0}, "gateway": {"replicas": 1}}
    documents = render(helm, values=written(tmp_path, values))
    cluster = Cluster(playground, Kubelet(documents, {}, tmp_path / "volumes"))
    assert {pod.service.image for pod in cluster.kubelet.pods.values()} == {"language"}
    playground.named(cluster.kubelet.names() | {OUTSIDE: [OUTSIDE]})
    people.starts_a_server()
    people.do(f"swarm model push toy-split --nats nats://{OUTSIDE}:4222", OUTSIDE)
    cluster.up()
    cluster.ready()

    def said() -> str:
        return people.do(f"python3 -c '{CHAT}' http://x-gateway:8000", OUTSIDE)

    first = said()
    assert first.strip()
    cluster.kill("x-shard-2-a-0")
    cluster.start("x-shard-2-a-0")
    cluster.ready()
    assert said() == first


@pytest.mark.weekly
def test_a_camera_is_served_with_credentials_at_a_server_outside(
    helm: Path, tmp_path: Path, playground: Machine, people: People
) -> None:
    people.has(split(red_detector(), name="red", stages=2, addition=Wish("detect", bake=False)))
    cv2.imwrite(str(people.home / "now.jpg"), scene(0, (96, 64)))
    camera: dict[str, Any] = {"name": "hall", "source": "http://video:8080/now.jpg"}
    camera["arguments"] = ["--send", "jpeg:85", "--rate", "10"]
    values = {"model": "red", "cameras": [camera], "stages": [{}, {}], "nats": OUTSIDE_CLOSED}
    values |= {"gateway": {"replicas": 0}, "credentials": {"secret": "mesh"}}
    secrets = people.secrets(OUTSIDE, model="red")
    documents = render(helm, values=written(tmp_path, values))
    cluster = Cluster(playground, Kubelet(documents, secrets, tmp_path / "volumes"))
    images = {name: pod.service.image for name, pod in cluster.kubelet.pods.items()}
    assert {name for name, image in images.items() if image == "node"} == {"x-shard-2-a-0"}
    playground.named(
        cluster.kubelet.names() | {OUTSIDE: [OUTSIDE], "video": ["video"], "x-nats": [SERVER]}
    )
    playground.shell("video", people.operator, "python3 -m http.server 8080")
    people.starts_a_server(Mount(people.home / "server", "/etc/nats", True))
    people.do(f"swarm model push red-split --nats tls://{OUTSIDE}:4222 {SECURED}", OUTSIDE)
    cluster.up()
    cluster.ready()

    def heard() -> str:
        return people.do(f"python3 -c '{HEAR}' tls://{OUTSIDE}:4222", OUTSIDE)

    assert heard().split() == ["hall", "OK"]
    cluster.kill("x-shard-1-a-0")
    assert heard().split() == ["hall", "OK"], "by the fallback"


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "values.yaml"
    path.write_text(json.dumps(values))
    return path


def copies(people: People) -> set[int]:
    """On how many servers the lanes of each stage are."""
    told = people.do(
        f"python3 -c 'import urllib.request as r; print(r.urlopen(\"{STREAMS}\").read().decode())'"
    )
    accounts = json.loads(told)["account_details"]
    streams = [stream for account in accounts for stream in account.get("stream_detail", [])]
    lanes = {s["name"]: s["config"]["num_replicas"] for s in streams if "=stage" in s["name"]}
    assert len(lanes) == 3
    return set(lanes.values())


def greeting(people: People) -> dict[str, object]:
    said = people.do(f'python3 -c "{GREETING}"')
    found: dict[str, object] = json.loads(said.removeprefix("INFO "))
    return found
