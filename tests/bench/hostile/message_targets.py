"""Parsers of requests, features, results and tensors, on the wire and between processes."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from bench.hostile.target import FLOOR, Case, Target, json_objects
from swarm.errors import Status
from swarm.samehost.compact import answer_parts, decode_features, decode_result, features_parts
from swarm.samehost.host_socket import frame_head, frames
from swarm.samehost.lending import NO_LOAN
from swarm.samehost.memory import Claim, ClaimReader, Ring, unavailable
from swarm.samehost.memory.segment import open_segment
from swarm.samehost.memory.slots import SEGMENT_HEADER, SEGMENT_MAGIC, SEGMENT_VERSION
from swarm.wire import oip
from swarm.wire.codecs import CODECS, encode
from swarm.wire.hops import Hop, pack_hop, unpack_hops
from swarm.wire.maps import ZERO_COPY_FROM, unpack_map
from swarm.wire.messages import Features, Request, Result
from swarm.wire.tensors import LIMITS, decode_tensors

# A small message is read by msgpack's C code, which bounds no total: its shortest values have one
# byte, and are objects of 72. A large message's values are counted.
MESSAGEPACK_FLOOR = FLOOR + 96 * ZERO_COPY_FROM
_HOPS = [Hop(1, "node-a", 10, 20), Hop(2, "node-b", 1, 2, 3, {"gpu": "x"}, 7)]
_TENSORS: dict[str, np.ndarray] = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "image": np.zeros((1, 3, 8, 8), np.uint8),
    "empty": np.zeros((0, 4), np.int64),
    "flag": np.array(True),
}
# So large that its message is walked in Python.
_LARGE: dict[str, np.ndarray] = {"x": np.zeros((1, 128, 12, 12), np.float32)}
_FEATURES = Features(
    "01J", "digits", "1", 2, "_INBOX.u.x.1", 50_000, _TENSORS, 2, "agent", 7, "session", "00-1-2-00"
)
_ONWARD = Features(
    *("1", "m", "1", 2, "_INBOX.a.1", 9, {"x": np.ones(3, np.float32)}),
    packed_hops=b"".join(pack_hop(hop.as_doc()) for hop in _HOPS),
)
_RESULT = Result("01J", "digits", "1", outputs=_TENSORS, hops=tuple(_HOPS))


def _joined(parts: list[Any]) -> bytes:
    return b"".join(map(bytes, parts))


# --- MessagePack and JSON -------------------------------------------------------------------


def _with_codecs() -> bytes:
    image = np.linspace(-1, 1, 3 * 40 * 40, dtype=np.float32).reshape(1, 3, 40, 40)
    tensors = {
        codec: {"datatype": "FP32", "shape": list(image.shape), "codec": codec, "data": data}
        for codec in CODECS
        if (data := encode(image, codec)) is not None
    }
    packed: bytes = msgpack.packb({"v": 1, "tensors": tensors})
    return packed


def _open_request(stack: ExitStack) -> Case:
    seeds = (
        _joined(Request(_TENSORS, "01J", "1", 0.05, "s", "a", 3).parts()),
        _joined(Request(_LARGE).parts()),
        _with_codecs(),
    )
    # A codec's tensor is larger decoded: 4 bits become 32.
    return Case(seeds, Request.decode, declared=lambda m: 8 * len(m), floor=MESSAGEPACK_FLOOR)


def _open_tensors(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        decode_tensors(unpack_map(data, LIMITS.bytes))

    doc = msgpack.unpackb(_with_codecs())["tensors"]
    claim = {
        "datatype": "UINT8",
        "shape": [9],
        "codec": "shm",
        "data": {"claim": b"", "owner": "i"},
    }
    seeds = (msgpack.packb({name: doc[name]}) for name in doc)
    return Case(
        (*seeds, msgpack.packb({"x": claim})),
        read,
        declared=lambda m: 8 * len(m),
        floor=MESSAGEPACK_FLOOR,
    )


def _open_json(stack: ExitStack) -> Case:
    def entry(name: str, shape: list[int], datatype: str, data: Any) -> dict[str, Any]:
        return {"name": name, "shape": shape, "datatype": datatype, "data": data}

    inputs = [
        entry("x", [2, 2], "FP32", [[1.5, 2], [3, -4e3]]),
        entry("y", [3], "INT64", [1, 2, 3]),
        entry("z", [1], "BOOL", [True]),
    ]
    parameters = {"budget_ms": 50, "session": "s", "agent": "a", "version": "1", "weights": 0}
    seeds = (
        json.dumps({"inputs": inputs, "id": "7", "parameters": parameters}).encode(),
        json.dumps({"inputs": [entry("x", [500], "FP32", [0.123456] * 500)]}).encode(),
    )
    # The whole is bounded by `oip.most_memory`, at 4 times the largest message.
    return Case(seeds, oip.decode_request, declared=json_objects)


def _open_features(stack: ExitStack) -> Case:
    hops = [hop.as_doc() for hop in _HOPS]
    seeds = (
        _joined(_FEATURES.parts()),
        _joined(Features("1", "m", "1", 1, "_INBOX.a.1", 9, _LARGE).parts()),
        _joined(Features("1", "m", "1", 1, "r", 9, {}, hops=hops).parts()),
    )
    return Case(seeds, Features.decode, floor=MESSAGEPACK_FLOOR)


def _open_result(stack: ExitStack) -> Case:
    refused = Result("1", message="no", stage=1, node="n", status=Status.UNAVAILABLE)
    seeds = (_joined(_RESULT.parts()), _joined(refused.parts()))
    return Case(seeds, Result.decode, floor=MESSAGEPACK_FLOOR)


# --- processes of one host ------------------------------------------------------------------


def _open_compact_features(stack: ExitStack) -> Case:
    def read(data: bytes) -> None:
        assert decode_features(data).all_hops is not None

    seeds = (
        _joined(features_parts(_FEATURES, NO_LOAN)),
        _joined(features_parts(_ONWARD, NO_LOAN)),
    )
    return Case(seeds, read, floor=MESSAGEPACK_FLOOR)


def _open_compact_result(stack: ExitStack) -> Case:
    seeds = (_joined(answer_parts(_RESULT, _ONWARD, NO_LOAN)),)
    return Case(seeds, decode_result, floor=MESSAGEPACK_FLOOR)


def _open_hops(stack: ExitStack) -> Case:
    return Case((_ONWARD.packed_hops,), unpack_hops)


def _open_datagrams(stack: ExitStack) -> Case:
    one = frame_head(5, "swarm.default.features.digits.1.2.any", "_INBOX.a.1") + b"hello"
    seeds = (one, one * 5, frame_head(0, "living", "") + frame_head(0, "", ""))

    def read(data: bytes) -> None:
        frames(memoryview(data))

    # The shortest message of a bundle has 16 bytes, and is a tuple of five objects.
    return Case(seeds, read, declared=lambda m: 8 * len(m))


def _open_claims(stack: ExitStack) -> Case:
    """Claims on memory that is really shared, so that changed ones are opened too."""
    if unavailable() is not None:
        return Case((b"",), Claim.from_wire)
    mesh = f"hostile{secrets.token_hex(4)}"
    ring, reader = Ring(mesh), ClaimReader(mesh)
    stack.callback(ring.close)
    stack.callback(reader.close)
    claims = [ring.put([bytes(size)]) for size in (1, 70_000)]

    def read(data: bytes) -> None:
        claim = Claim.from_wire(data)
        reader.open(claim)
        reader.done(claim)

    return Case(tuple(claim.to_wire() for claim in claims if claim is not None), read)


def _open_segments(stack: ExitStack) -> Case:
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    name = f"swarm-hostile-1-{'0' * 16}"
    path = Path(folder) / name
    path.touch(0o600)

    def read(data: bytes) -> None:
        path.write_bytes(data)
        os.close(open_segment(folder, name))

    header = SEGMENT_HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 1, 0.0)
    return Case((header, header + bytes(4096)), read)


TARGETS = (
    Target("request.messagepack", "msgpack", _open_request),
    Target("request.json", "json", _open_json),
    Target("tensors", "msgpack", _open_tensors),
    Target("features", "msgpack", _open_features),
    Target("result", "msgpack", _open_result),
    Target("compact.features", "bytes", _open_compact_features),
    Target("compact.result", "bytes", _open_compact_result),
    Target("hops", "bytes", _open_hops, 0.5),
    Target("datagrams", "bytes", _open_datagrams, 0.5),
    Target("claims", "bytes", _open_claims),
    Target("segments", "bytes", _open_segments, 0.2),
)
