"""The page for people: the models of the mesh, lines that ask them, and pictures that they read.

Paths that are none of a protocol's: `/`, `/openapi.json`, and those below `/page`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import orjson

from nodes.features import first
from nodes.gateway import statuses
from nodes.gateway.added import added
from nodes.gateway.call import Caller, Callers, InferCall
from nodes.gateway.hand import RETRY_AFTER
from nodes.gateway.http.body import whole_body
from nodes.gateway.http.connection import CONNECTION
from nodes.gateway.http.server import BOUNDS
from nodes.gateway.inference import Inference
from nodes.gateway.models import Listed, Models
from nodes.gateway.page.lines import lines_for
from nodes.gateway.page.openapi import document as openapi_document
from nodes.gateway.statuses import NoSuchMethod, NoSuchPath, TooSlow
from nodes.meaning import Meaning
from shards.errors import ShardsError
from shards.manifest import Manifest
from swarm.errors import (
    Internal,
    InvalidArgument,
    ResourceExhausted,
    SwarmError,
    Unauthenticated,
)
from swarm.model import ModelInfo, Spec

log = logging.getLogger("swarm.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

SITE = Path(__file__).parent / "site"
FILES = {
    "": ("index.html", b"text/html; charset=utf-8"),
    "page/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "page/style.css": ("style.css", b"text/css; charset=utf-8"),
}
JSON = b"application/json"
NO_HEADERS: list[tuple[bytes, bytes]] = []
MOST_SIDE = 4096  # pixels of a picture
MOST_PICTURE = 8 << 20  # bytes of its pixels
MOST_PICTURES = 8  # that are prepared or asked for at a time
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?|\[[0-9a-fA-F:]{2,45}\](:\d{1,5})?")
# The page has no script, style or picture but its own, and no other page may frame it.
SAFE = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


class PageApp:
    """An ASGI application behind the HTTP door. The page itself and the OpenAPI document are
    anybody's; models and pictures are for callers. full: the code where too many ask."""

    def __init__(
        self, inference: Inference, models: Models, callers: Callers, full: int = 429
    ) -> None:
        self._inference = inference
        self._models = models
        self._callers = callers
        self._full = full
        self._pictures = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            kind, body = await self._route(scope, receive)
            code, more = 200, NO_HEADERS
        except SwarmError as error:
            code, kind, body, more = self._refused(error)
        except Exception:
            log.exception("a request to %.200s failed", scope["path"])
            fault = Internal("a fault of the gateway, which its log describes")
            code, kind, body, more = self._refused(fault)
        length = (b"content-length", b"%d" % len(body))
        headers = [(b"content-type", kind), length, *SAFE, *more]
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _route(self, scope: Scope, receive: Receive) -> tuple[bytes, bytes]:
        """The content type and the body. Raises `SwarmError`."""
        path = scope["path"].strip("/")
        if path in FILES:
            _only(scope, "GET", "HEAD")
            name, kind = FILES[path]
            return kind, (SITE / name).read_bytes()
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        match path.split("/"):
            case ["openapi.json"]:
                _only(scope, "GET", "HEAD")
                return JSON, orjson.dumps(openapi_document())
            case ["page", "models"]:
                _only(scope, "GET", "HEAD")
                caller = self._caller(scope, headers, takes=False)
                return JSON, orjson.dumps(await self._listed(_url(scope, headers), caller))
            case ["page", "see", model]:
                _only(scope, "POST")
                caller = self._caller(scope, headers)
                return JSON, orjson.dumps(await self._see(model, scope, headers, caller, receive))
        raise NoSuchPath(f"there is nothing at {scope['path']!r:.200}")

    def _caller(self, scope: Scope, headers: dict[str, str], takes: bool = True) -> Caller:
        peer, certificate = (scope["client"] or ("", 0))[0], scope["state"][CONNECTION].certificate
        return self._callers.of(headers, peer, certificate, takes=takes)

    # --- models -----------------------------------------------------------------------------

    async def _listed(self, url: str, caller: Caller) -> dict[str, Any]:
        """The version of each model that serves, and else the last one, with the reason."""
        chosen: dict[str, Listed] = {}
        for each in await self._models.listed():
            if each.ready or not chosen.get(each.name, each).ready:
                chosen[each.name] = each
        found = []
        for each in chosen.values():
            model: dict[str, Any] = {"name": each.name, "version": each.version}
            model |= {"ready": each.ready, "reason": each.reason, "inputs": [], "outputs": []}
            if each.ready:
                model |= await self._described(each.name, url, caller)
            found.append(model)
        return {"models": found}

    async def _described(self, name: str, url: str, caller: Caller) -> dict[str, Any]:
        info = await self._models.describe(name)
        key = "YOUR-KEY" if caller.known_by in ("key", "token") else ""
        asked = (each.lines(info, url, key) for each in added())
        lines = next((found for found in asked if found is not None), None)
        if lines is None:
            manifest = Manifest.from_json(await self._models.manifest(name, info.version))
            examples = manifest.extra.get("examples", {})
            lines = lines_for(name, info.inputs, examples, url, key)
        meaning = _meaning_of(info)
        return {
            "version": info.version,
            "inputs": [_tensor(spec) for spec in info.inputs],
            "outputs": [_tensor(spec) for spec in info.outputs],
            "task": None if meaning is None else meaning.kind,
            "lines": asdict(lines),
        }

    # --- pictures ---------------------------------------------------------------------------

    async def _see(
        self,
        name: str,
        scope: Scope,
        headers: dict[str, str],
        caller: Caller,
        receive: Receive,
    ) -> dict[str, Any]:
        """What a model says of the picture whose RGB pixels are the body."""
        width, height = _size(scope)
        if self._pictures >= MOST_PICTURES:
            raise ResourceExhausted(f"{MOST_PICTURES} pictures are being read", RETRY_AFTER)
        self._pictures += 1
        try:
            info = await self._models.describe(name)
            meaning = _meaning_of(info)
            if meaning is None:
                raise InvalidArgument(
                    f"model {name!r:.80} does not say what it does with a picture: split it with "
                    "--task, or ask it by v2"
                )
            size = 3 * width * height
            holder = scope["state"][CONNECTION]
            body = await whole_body(headers, receive, size, BOUNDS.body_time, holder)
            if len(body) != size:
                raise InvalidArgument(
                    f"{len(body)} bytes: a picture of {width} x {height} has {size}, RGB"
                )
            image = np.frombuffer(body, np.uint8).reshape(height, width, 3)
            inputs = await asyncio.to_thread(meaning.inputs_of, image)
            answer = await self._inference.run(
                InferCall(name, inputs, caller, version=info.version)
            )
            found = await asyncio.to_thread(meaning.read, answer.outputs, image.shape)
            return found.document()
        except ShardsError as error:
            raise InvalidArgument(str(error)) from None
        finally:
            self._pictures -= 1

    def _refused(self, error: SwarmError) -> tuple[int, bytes, bytes, list[tuple[bytes, bytes]]]:
        more = statuses.retry_after(error)
        if isinstance(error, Unauthenticated):
            more.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, TooSlow):
            more.append((b"connection", b"close"))
        code = statuses.http_code(error, self._full)
        return code, JSON, orjson.dumps({"error": str(error)}), more


def _meaning_of(info: ModelInfo) -> Meaning | None:
    """None for a model that declares none, or one that this version does not know."""
    try:
        return first(lambda feature: feature.meaning(info))
    except ShardsError as error:
        log.warning("model %s: %s", info.model, error)
        return None


def _tensor(spec: Spec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _size(scope: Scope) -> tuple[int, int]:
    """Width and height of the query. Raises `InvalidArgument`."""
    try:
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    except ValueError:
        raise InvalidArgument("a picture has a width and a height, and no more fields") from None
    sides = []
    for name in ("width", "height"):
        text = query.get(name, [""])[0]
        if not (text.isascii() and text.isdigit() and 0 < int(text[:5]) <= MOST_SIDE):
            raise InvalidArgument(f"{name} is a number of pixels, 1 to {MOST_SIDE}")
        sides.append(int(text[:5]))
    width, height = sides
    if 3 * width * height > MOST_PICTURE:
        raise InvalidArgument(f"a picture has at most {MOST_PICTURE} bytes of pixels")
    return width, height


def _url(scope: Scope, headers: dict[str, str]) -> str:
    """By which the caller reaches this gateway. Raises `InvalidArgument`: it goes into lines for
    a shell."""
    host = headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise InvalidArgument("the header host names no host")
    return f"{scope['scheme']}://{host}"


def _only(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise NoSuchMethod(f"{scope['method']} is not for this path: {methods[0]} is")
