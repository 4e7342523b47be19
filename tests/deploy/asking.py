"""What people do with a mesh that is played: they push a model, and ask it by the gateway."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from playing import Machine, Mount, Service
from support.meshes import digits

ASK = """
import json, sys, urllib.request
rows = json.load(open("/requests.json"))
for row in rows:
    body = {"inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": row}]}
    sent = urllib.request.Request(
        sys.argv[1] + "/v2/models/digits/infer", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(sent, timeout=20))
    data = answer["outputs"][0]["data"]
    print(max(range(10), key=data.__getitem__))
"""


def questions(folder: Path, count: int) -> tuple[Mount, list[int]]:
    """A file of images, and what they show by the whole model."""
    pictures, logits = digits()
    path = folder / "requests.json"
    path.write_text(json.dumps([picture.ravel().tolist() for picture in pictures[:count]]))
    path.chmod(0o644)
    return Mount(path, "/requests.json", True), np.argmax(logits[:count], axis=1).tolist()


def answers(playground: Machine, name: str, person: Service, url: str) -> list[int]:
    """What the gateway says of each image, asked in the network of a service."""
    script = f"python3 -c '{ASK}' {url}"
    return list(map(int, playground.inside(name, person, script).split()))


def operator(user: int, *mounts: Mount) -> Service:
    """A shell of the image `tools`."""
    homes = {"HOME": "/home", "XDG_CONFIG_HOME": "/home/config", "XDG_CACHE_HOME": "/home/cache"}
    return Service("operator", "tools", [], homes, user, user, folder="/home", mounts=mounts)
