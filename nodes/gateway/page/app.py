"""The page for people: the models of the mesh, lines that ask them, and pictures that they read.

Paths that are none of a protocol's: `/`, `/openapi.json`, and those below `/page`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from nodes.features import first
from nodes.gateway import model_documents as documents
from nodes.gateway.call import Caller, Callers, InferCall
from nodes.gateway.hand import RETRY_AFTER
from nodes.gateway.http.application import Headers, HttpApplication, HttpRequest
from nodes.gateway.inference import Inference
from nodes.gateway.models import Listed, Models
from nodes.gateway.page.lines import lines_for
from nodes.gateway.page.openapi import document as openapi_document
from nodes.gateway.settings import GatewayOptions
from nodes.meaning import Meaning
from shards.errors import ShardsError
from shards.manifest import Manifest
from swarm.errors import InvalidArgument, ResourceExhausted
from swarm.model import ModelInfo
from swarm.wire.messages import Request

log = logging.getLogger("swarm.gateway")

SITE = Path(__file__).parent / "site"
FILES = {
    "": ("index.html", b"text/html; charset=utf-8"),
    "page/page.js": ("page.js", b"text/javascript; charset=utf-8"),
    "page/style.css": ("style.css", b"text/css; charset=utf-8"),
}
MOST_SIDE = 4096  # pixels of a picture
MOST_PICTURE = 8 << 20  # bytes of its pixels
MOST_PICTURES = 8  # that are prepared or asked for at a time
_HOST = re.compile(r"[A-Za-z0-9.-]{1,253}(:\d{1,5})?|\[[0-9a-fA-F:]{2,45}\](:\d{1,5})?")
# The page has no script, style or picture but its own, and no other page may frame it.
SAFE: Headers = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


class PageApp(HttpApplication):
    """Answers to all paths that no other application has. The page itself and the OpenAPI document
    are anybody's; models and pictures are for callers."""

    always = SAFE

    def __init__(
        self, inference: Inference, models: Models, callers: Callers, options: GatewayOptions
    ) -> None:
        super().__init__(callers, options)
        self._inference = inference
        self._models = models
        self._pictures = 0

    async def answer(self, asked: HttpRequest) -> None:
        path = "/".join(asked.path)
        if path in FILES:
            asked.only("GET", "HEAD")
            name, kind = FILES[path]
            await asked.whole([(SITE / name).read_bytes()], [(b"content-type", kind)])
            return
        match asked.path:
            case ["openapi.json"]:
                asked.only("GET", "HEAD")
                await asked.json(openapi_document())
            case ["page", "models"]:
                asked.only("GET", "HEAD")
                caller = self.caller(asked, takes=False)
                await asked.json(await self._listed(_url(asked), caller))
            case ["page", "see", model]:
                asked.only("POST")
                caller = self.caller(asked, takes=True)
                await asked.json(await self._see(model, asked, caller))
            case _:
                raise asked.nothing()

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
        manifest = Manifest.from_json(await self._models.manifest(name, info.version))
        lines = lines_for(info, manifest.extra.get("examples", {}), url, key)
        meaning = _meaning_of(info)
        return {
            "version": info.version,
            "inputs": [documents.tensor(spec) for spec in info.inputs],
            "outputs": [documents.tensor(spec) for spec in info.outputs],
            "task": None if meaning is None else meaning.kind,
            "lines": asdict(lines),
        }

    # --- pictures ---------------------------------------------------------------------------

    async def _see(self, name: str, asked: HttpRequest, caller: Caller) -> dict[str, Any]:
        """What a model says of the picture whose RGB pixels are the body."""
        width, height = _size(asked.scope["query_string"].decode("latin-1"))
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
            body = await asked.body(size)
            if len(body) != size:
                raise InvalidArgument(
                    f"{len(body)} bytes: a picture of {width} x {height} has {size}, RGB"
                )
            image = np.frombuffer(body, np.uint8).reshape(height, width, 3)
            inputs = await asyncio.to_thread(meaning.inputs_of, image)
            answer = await self._inference.run(
                InferCall(name, Request(inputs, version=info.version, agent=caller.agent))
            )
            found = await asyncio.to_thread(meaning.read, answer.outputs, image.shape)
            return found.document()
        except ShardsError as error:
            raise InvalidArgument(str(error)) from None
        finally:
            self._pictures -= 1


def _meaning_of(info: ModelInfo) -> Meaning | None:
    """None for a model that declares none, or one that this version does not know."""
    try:
        return first(lambda feature: feature.meaning(info))
    except ShardsError as error:
        log.warning("model %s: %s", info.model, error)
        return None


def _size(text: str) -> tuple[int, int]:
    """Width and height of a query. Raises `InvalidArgument`."""
    try:
        query = parse_qs(text, max_num_fields=8)
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


def _url(asked: HttpRequest) -> str:
    """By which the caller reaches this gateway. Raises `InvalidArgument`: it goes into lines for
    a shell."""
    host = asked.headers.get("host", "")
    if not _HOST.fullmatch(host):
        raise InvalidArgument("the header host names no host")
    return f"{asked.scope['scheme']}://{host}"
