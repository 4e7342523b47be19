"""The paths of the Open Inference Protocol and of Triton's extensions."""

from __future__ import annotations

from nodes.gateway import model_documents as documents
from nodes.gateway import parameters as words
from nodes.gateway.call import Caller, Callers
from nodes.gateway.http import compression
from nodes.gateway.http.application import JSON, Headers, HttpApplication, HttpRequest
from nodes.gateway.http.infer import HEADER_LENGTH, decoded, encoded
from nodes.gateway.inference import Inference
from nodes.gateway.models import Models
from nodes.gateway.settings import GatewayOptions
from nodes.gateway.shared_memory import Regions
from nodes.gateway.statistics import empty_document
from nodes.gateway.statuses import NoSuchPath, NotOffered
from swarm.errors import InvalidArgument
from swarm.wire.tensors import LIMITS, MessageLimits, Part

BINARY = (b"content-type", b"application/octet-stream")
SMALL = 64 << 10  # bytes of a body that holds no tensors
# What Triton has and the mesh has not, by the path's parts.
LEFT_OUT = {
    "cudasharedmemory": "shared memory of GPUs is not offered: send the tensors",
    "logging": "settings of logs are not offered",
    "trace": "trace settings are not offered: the header traceparent goes through",
    "load": "models are not loaded by clients: `swarm model push` and `promote` do that",
    "unload": "models are not unloaded by clients: `swarm model rollback` and `promote` do that",
    "generate": "generate is not offered: `infer` is",
    "generate_stream": "generate_stream is not offered: `infer` is",
}


class App(HttpApplication):
    """Answers below `v2`. regions: None where shared memory is off."""

    def __init__(
        self,
        inference: Inference,
        models: Models,
        callers: Callers,
        options: GatewayOptions,
        regions: Regions | None,
    ) -> None:
        super().__init__(callers, options)
        self._options = options
        self._inference = inference
        self._models = models
        self._limits = MessageLimits(bytes=min(options.body, LIMITS.bytes))
        self._regions = regions

    async def answer(self, asked: HttpRequest) -> None:
        if asked.path[:2] == ["v2", "health"]:
            await self._health(asked)
            return
        asks = asked.path[-1] == "infer"  # of what is only told, a quota counts nothing
        caller = self.caller(asked, takes=asks)
        match asked.path[1:]:
            case ["models", name, "infer"]:
                await asked.whole(*await self._inferred(asked, caller, name, ""))
            case ["models", name, "versions", version, "infer"]:
                await asked.whole(*await self._inferred(asked, caller, name, version))
            case [] if asked.path == ["v2"]:
                asked.only("GET", "HEAD")
                shm = self._regions is not None
                await asked.json(documents.server_metadata(self._options.server_name, shm))
            case ["models", "stats"]:
                asked.only("GET", "HEAD")
                await asked.json({"model_stats": self._inference.statistics.documents()})
            case ["models", name, "versions", version, *rest]:
                await self._model(asked, name, version, rest)
            case ["models", name, *rest]:
                await self._model(asked, name, "", rest)
            case ["repository", "index"]:
                asked.only("POST", "GET")
                only_ready = (await asked.document(SMALL)).get("ready") is True
                listed = await self._models.listed()
                await asked.json(documents.repository_index(listed, only_ready))
            case ["systemsharedmemory", "region", name, act]:
                await self._shared_memory(asked, name, act)
            case ["systemsharedmemory", act]:
                await self._shared_memory(asked, "", act)
            case ["cudasharedmemory", *_, "status"]:
                asked.only("GET", "HEAD")
                await asked.json([])  # none is ever registered
            case ["cudasharedmemory", *_, "unregister"]:
                asked.only("POST")
                await asked.whole([], [JSON])
            case _:
                _refuse_left_out(asked)
                raise asked.nothing()

    # --- what there is ----------------------------------------------------------------------

    async def _health(self, asked: HttpRequest) -> None:
        if asked.path[2:] == ["live"]:
            await asked.json({"live": True})
        elif asked.path[2:] == ["ready"]:
            is_draining = asked.connection.figures.is_draining
            ready = not is_draining and self._models.is_connected()
            await asked.json({"ready": ready}, 200 if ready else 503)
        else:
            raise NoSuchPath("there are v2/health/live and v2/health/ready")

    async def _model(self, asked: HttpRequest, name: str, version: str, rest: list[str]) -> None:
        if rest not in ([], ["ready"], ["config"], ["stats"]):
            _refuse_left_out(asked)
            raise NoSuchPath(f"model {name!r:.80} has no {'/'.join(rest)!r:.80}")
        asked.only("GET", "HEAD")
        if rest == ["ready"]:
            ready = await self._models.is_ready(name, version)
            await asked.json({"name": name, "ready": ready}, 200 if ready else 404)
            return
        info = await self._models.describe(name, version)
        if rest == ["config"]:
            document = documents.model_config(info)
        elif rest == ["stats"]:
            found = self._inference.statistics.documents(name, version)
            document = {"model_stats": found or [empty_document(info.model, info.version)]}
        else:
            document = documents.model_metadata(info, await self._models.versions(name))
        await asked.json(document)

    async def _shared_memory(self, asked: HttpRequest, name: str, act: str) -> None:
        if self._regions is None:
            raise words.no_shared_memory()
        if act == "status":
            asked.only("GET", "HEAD")
            await asked.json(documents.regions(self._regions.registered(name)))
            return
        asked.only("POST")
        if act == "unregister":
            self._regions.unregister(name)
        elif act == "register" and name:
            document = await asked.document(SMALL)
            key = words.word(document.get("key"), "key")
            offset = words.count(document.get("offset", 0), "offset")
            size = words.count(document.get("byte_size"), "byte_size")
            self._regions.register(name, key, offset, size)
        else:
            raise NoSuchPath("a region is registered, unregistered, or asked for its status")
        await asked.whole([], [JSON])

    # --- an inference -----------------------------------------------------------------------

    async def _inferred(
        self, asked: HttpRequest, caller: Caller, model: str, version: str
    ) -> tuple[list[Part], Headers]:
        """The parts of an answer, and its headers. The request's own bytes are let go with this
        call, before the answer is put together."""
        asked.only("POST")
        body = await asked.body(self._limits.bytes)
        try:
            call = decoded(model, version, body, asked.headers, caller, self._regions, self._limits)
        except InvalidArgument:
            await self._models.describe(model, version)  # no request is right for an unknown model
            raise
        result = await self._inference.run(call)
        head, tensors = encoded(result, call, self._regions)
        parts: list[Part] = [head, *tensors]
        headers: Headers = [JSON]
        if tensors:
            headers = [BINARY, (HEADER_LENGTH.encode(), b"%d" % len(head))]
        if (age := result.cached_ms) is not None:  # RFC 9211 and RFC 9111
            headers += [(b"cache-status", b"swarm; hit"), (b"age", b"%d" % (age / 1e3))]
        if self._options.compress:
            encoding = compression.accepted(asked.headers.get("accept-encoding", ""))
            whole = b"".join(parts)
            if encoding and len(whole) >= compression.COMPRESS_FROM:
                parts = [await compression.packed(whole, encoding)]
                headers.append((b"content-encoding", encoding.encode()))
        return parts, headers


def _refuse_left_out(asked: HttpRequest) -> None:
    """Raises `NotOffered` for a path of Triton's that the gateway leaves out."""
    for part in asked.path[1:2] + asked.path[3:]:
        if part in LEFT_OUT:
            raise NotOffered(LEFT_OUT[part])
