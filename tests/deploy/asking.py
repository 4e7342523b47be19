"""What people do with a mesh that is played: they push a model, and ask it by the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from playing import Machine, Mount, Service
from support.meshes import digits

MANY = 100  # requests of a load, at least

CALL = """
import http.client, json, random, ssl, sys, time, urllib.request

def ask(url, name, body, key=""):
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": "Bearer " + key} if key else {}
    sent = urllib.request.Request(url + name, json.dumps(body).encode(), headers)
    context = ssl.create_default_context(cafile="/home/gateway.pem") if key else None
    return json.load(urllib.request.urlopen(sent, timeout=20, context=context))

def shown(url, row, key=""):
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": row}]}
    data = ask(url, "/v2/models/digits/infer", body, key)["outputs"][0]["data"]
    return max(range(10), key=data.__getitem__)

rows = json.load(open("/requests.json"))
"""
ASK = f"""{CALL}
for row in rows:
    print(shown(sys.argv[1], row, sys.argv[2]))
"""
# Each request by a connection of its own to one of the addresses that stand in a file meanwhile.
KEEP_ASKING = f"""{CALL}
number = 0
while (urls := json.load(open("/load/endpoints.json"))):
    at, number = number % len(rows), number + 1
    try:
        print(at, shown(random.choice(urls), rows[at]), flush=True)
    except (OSError, http.client.HTTPException) as error:
        print(at, type(error).__name__, error, flush=True)
    time.sleep(0.03)
"""


def questions(folder: Path, count: int) -> tuple[Mount, list[int]]:
    """A file of images, and what they show by the whole model."""
    pictures, logits = digits()
    path = folder / "requests.json"
    path.write_text(json.dumps([picture.ravel().tolist() for picture in pictures[:count]]))
    path.chmod(0o644)
    return Mount(path, "/requests.json", True), np.argmax(logits[:count], axis=1).tolist()


def answers(playground: Machine, name: str, person: Service, url: str, key: str = "") -> list[int]:
    """What the gateway says of each image, asked in the network of a service. key: of a caller, for
    a gateway with TLS."""
    script = f"python3 -c '{ASK}' {url} '{key}'"
    return list(map(int, playground.inside(name, person, script).split()))


class Load:
    """Somebody who asks all the time."""

    def __init__(self, playground: Machine, name: str, person: Service, folder: Path) -> None:
        folder.mkdir()
        self._endpoints = folder / "endpoints.json"
        person = replace(person, mounts=[*person.mounts, Mount(folder, "/load", True)])
        self._asked = partial(playground.inside, name, person, f"python3 -c '{KEEP_ASKING}'")

    def goes_to(self, *addresses: str) -> None:
        """Where the next requests go: URLs of gateways."""
        written = self._endpoints.with_suffix(".new")
        written.write_text(json.dumps(addresses))
        written.replace(self._endpoints)

    @contextmanager
    def steady(self, shown: list[int]) -> Iterator[None]:
        """Asks within the block. Fails where one request of these was not answered rightly."""
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(self._asked)
            try:
                yield
            finally:
                self.goes_to()
            lines = asked.result().splitlines()
        wrong = [line for line in lines if line.split()[1:] != [str(shown[int(line.split()[0])])]]
        assert not wrong, f"{len(wrong)} of {len(lines)}: {wrong[:5]}"
        assert len(lines) > MANY, len(lines)


def operator(user: int, *mounts: Mount) -> Service:
    """A shell of the image `tools`."""
    homes = {"HOME": "/home", "XDG_CONFIG_HOME": "/home/config", "XDG_CACHE_HOME": "/home/cache"}
    return Service("operator", "tools", [], homes, user, user, folder="/home", mounts=mounts)
