"""An HTTP door on loopback in front of a given answer, and a client that sends bytes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gateway_fakes import Anybody, OneModel
from support.waiting import GENEROUS

from nodes.gateway.hand import BytesInHand
from nodes.gateway.http.app import App
from nodes.gateway.http.connection import HttpBounds
from nodes.gateway.http.server import HttpServer
from nodes.gateway.inference import Inference
from nodes.gateway.models import Listed
from nodes.gateway.page.app import PageApp
from nodes.gateway.settings import GatewayOptions
from swarm.errors import NotFound, Status, SwarmError
from swarm.model import ModelInfo, Spec, Stage
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result

X = (Spec("x", "FP32", (-1, 4)),)
YZ = (Spec("double", "FP32", (-1, 4)), Spec("negative", "FP32", (-1, 4)))
INFO = ModelInfo("m", "3", X, YZ, (Stage(1, X, YZ, 1.0),))
INPUT = np.array([[1, 2, 3, 4]], np.float32)
HOPS = (Hop(1, "n1", 2, 3),)

Answer = Callable[[str, Request], Awaitable[Result]]


async def doubled(model: str, request: Request) -> Result:
    """The answer of the model `m`."""
    try:
        if model != "m":
            raise NotFound(f"no model {model!r}")
        INFO.check(request.inputs)
        INFO.check_outputs(request.outputs)
    except SwarmError as error:
        return Result("id", model, status=Status(error.status), message=str(error))
    x = request.inputs["x"]
    made = {"double": 2 * x, "negative": -x}
    outputs = {name: made[name] for name in request.outputs or made}
    return Result(request.id or "made", "m", "3", outputs=outputs, hops=HOPS, latency=0.001)


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.document["error"])

    def tensors(self) -> dict[str, np.ndarray]:
        """The outputs, from JSON or from behind it."""
        head = int(self.headers.get("inference-header-content-length", len(self.body)))
        at = head
        found = {}
        for output in json.loads(self.body[:head])["outputs"]:
            size = output.get("parameters", {}).get("binary_data_size")
            if size is None:
                array = np.array(output["data"], np.float32)
            else:
                array = np.frombuffer(self.body[at : at + size], np.float32)
                at += size
            found[output["name"]] = array.reshape(output["shape"])
        assert at == len(self.body)
        return found


@dataclass
class Client:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> Reply:
        """The next one, without the informational ones."""
        async with asyncio.timeout(GENEROUS):
            while True:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.strip().split("\r\n")
                code = int(first.split()[1])
                if code >= 200:
                    break
            headers = {}
            for line in lines:
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Reply(code, headers, body)

    async def end(self) -> bytes:
        """All that comes until the server closes the connection."""
        async with asyncio.timeout(GENEROUS):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""

    def close(self) -> None:
        self.writer.close()


@dataclass
class Door:
    """A server, and its parts."""

    server: HttpServer
    inference: Inference
    models: OneModel
    callers: Anybody
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        streams = await asyncio.open_connection("127.0.0.1", self.server.port)
        self.clients.append(Client(*streams))
        return self.clients[-1]

    async def ask(
        self,
        path: str,
        body: bytes | None = None,
        method: str = "",
        client: Client | None = None,
        **headers: str,
    ) -> Reply:
        """GET, or POST with a body."""
        client = client or await self.connect()
        client.send(message(path, body, method, **headers))
        return await client.reply()

    async def infer(self, document: Any, **headers: str) -> Reply:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await self.ask("/v2/models/m/infer", body, **headers)


def message(path: str, body: bytes | None = None, method: str = "", **headers: str) -> bytes:
    """The bytes of a request."""
    method = method or ("GET" if body is None else "POST")
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None and "Transfer_Encoding" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + (body or b"")


def tensor(array: np.ndarray = INPUT, **more: Any) -> dict[str, Any]:
    """An input in JSON."""
    values = {"data": array.ravel().tolist()} if "parameters" not in more else {}
    return {"name": "x", "datatype": "FP32", "shape": list(array.shape), **values, **more}


def binary(array: np.ndarray = INPUT, **document: Any) -> tuple[bytes, dict[str, str]]:
    """A request whose tensor is behind the JSON, and its header."""
    entry = tensor(array, parameters={"binary_data_size": array.nbytes})
    head = json.dumps({"inputs": [entry], **document}).encode()
    return head + array.tobytes(), {"Inference_Header_Content_Length": str(len(head))}


def bomb(megabytes: int) -> bytes:
    """A small body that is large once it is unpacked."""
    return gzip.compress(bytes(megabytes << 20))


@asynccontextmanager
async def door(
    answer: Answer = doubled,
    bounds: HttpBounds = HttpBounds(),  # noqa: B008
    most_in_flight: int = 256,
    regions: Any = None,
    page: bool = False,
    **options: Any,
) -> AsyncIterator[Door]:
    """A door that is open."""
    models = OneModel(INFO, Listed("n", "1", False, "no node serves it"))
    callers = Anybody()
    chosen = GatewayOptions(http="127.0.0.1:0", **options)
    inference = Inference(answer, most_in_flight, BytesInHand(chosen.bodies))
    protocol = App(inference, models, callers, chosen, regions)
    others = PageApp(inference, models, callers, chosen) if page else protocol
    apps = {"v2": protocol, "": others}
    server = HttpServer(apps, chosen, inference.hand, bounds=bounds)
    await server.start()
    opened = Door(server, inference, models, callers)
    try:
        yield opened
    finally:
        for client in opened.clients:
            client.close()
        await server.drain(1.0)
