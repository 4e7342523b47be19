"""The models of a mesh: artifacts in an object store, manifests and desired state in KV.

Keys of the bucket `swarm-<mesh>-config`:

    models.<model>.<version>   the manifest, JSON; immutable
    serve.<model>              desired state: {"serve": [{"version", "share"}], …}, JSON

A change of any key is republished as `swarm.<mesh>.config.<key>`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping

from swarm.errors import InvalidArgument, NotFound
from swarm.link import Link, jetstream
from swarm.model import ModelInfo, unknown_model
from swarm.routing import BadDesiredState, Problem, parse_desired
from swarm.services.artifacts import ObjectStore, Source
from swarm.subjects import Subjects, token


class Registry:
    """Reads and writes the models of one mesh.

    All methods raise `Unavailable` when the server cannot be reached, and `SubjectError` for a name
    or version that is no token.
    """

    def __init__(self, link: Link, subjects: Subjects) -> None:
        self._link = link
        self._subjects = subjects
        self._bucket = subjects.config_bucket
        self._objects = ObjectStore(link, subjects.models_bucket)

    async def prepare(self) -> None:
        """Create the config bucket, unless it exists."""
        await jetstream.ensure_bucket(self._link, self._bucket, f"{self._subjects.root}.config")

    async def manifest(self, model: str, version: str) -> bytes:
        """A version's manifest, JSON. Raises `NotFound`."""
        key = f"models.{token(model, 'model name')}.{token(version, 'version')}"
        data = await jetstream.kv_get(self._link, self._bucket, key)
        if data is None:
            raise unknown_model(model, version)
        return data

    async def info(self, model: str, version: str = "") -> ModelInfo:
        """A version of a model; without a version, the one that `serving` names. Raises
        `NotFound`."""
        version = version or await self.serving(model)
        return ModelInfo.from_manifest(await self.manifest(model, version))

    async def serving(self, model: str) -> str:
        """The version with the largest share of the traffic. Raises `NotFound`."""
        doc = await self.desired(model)
        if doc is None:
            raise unknown_model(model)
        entries = doc["serve"]
        return str(max(entries, key=lambda entry: float(str(entry["share"])))["version"])

    async def desired(self, model: str) -> dict[str, list[dict[str, object]]] | None:
        """The model's desired state, or None. Raises `BadDesiredState`."""
        key = f"serve.{token(model, 'model name')}"
        data = await jetstream.kv_get(self._link, self._bucket, key)
        if data is None:
            return None
        try:
            doc = json.loads(data)
        except (ValueError, RecursionError):
            raise BadDesiredState([Problem("", "it is no JSON")]) from None
        if not isinstance(doc, dict):
            raise BadDesiredState([Problem("", "it is no object")])
        parse_desired(doc | {"model": model})
        return doc

    async def promote(self, model: str, version: str) -> str:
        """Let `version` serve all traffic. Returns the version that served before, or "".

        Raises `NotFound`.
        """
        await self.manifest(model, version)
        before = await self.desired(model)
        previous = await self.serving(model) if before else ""
        doc = {"serve": [{"version": version, "share": 100}], "previous": previous}
        await jetstream.kv_put(self._link, self._bucket, f"serve.{model}", json.dumps(doc).encode())
        return previous

    async def rollback(self, model: str) -> str:
        """Let the version that served before the present one serve again, and return it.

        Raises `NotFound`.
        """
        doc = await self.desired(model)
        previous = str((doc or {}).get("previous") or "")
        if not previous:
            raise NotFound(f"model {model!r} has no earlier version to go back to")
        await self.promote(model, previous)
        return previous

    async def models(self) -> list[tuple[str, str]]:
        """The model and version of each manifest that was pushed, sorted."""
        keys = await jetstream.kv_keys(self._link, self._bucket, "models")
        return [(key.split(".")[1], key.split(".")[2]) for key in keys]

    async def push(
        self,
        manifest: bytes,
        files: Mapping[str, Source],
        progress: Callable[[str, int], None] = lambda name, size: None,
        prepare: Callable[[ModelInfo], Awaitable[None]] | None = None,
        *,
        sent: Callable[[int], None] = lambda size: None,
    ) -> ModelInfo:
        """Store a version: its files first, its manifest last, so it appears whole.

        files: artifacts by name, as bytes or as paths; `progress(name, bytes)` is called before
        each, `sent(bytes)` after each part that is stored. prepare(info) is awaited before the
        manifest: nodes find there what it has made.

        The first version of a model serves at once. Raises `InvalidArgument` when the
        version exists with other content: versions are immutable.
        """
        info = ModelInfo.from_manifest(manifest)
        await self.prepare()
        key = f"models.{info.model}.{info.version}"
        existing = await jetstream.kv_get(self._link, self._bucket, key)
        if existing is not None and existing != manifest:
            raise InvalidArgument(
                f"{info.model}@{info.version} exists and versions are immutable: "
                "split again with another --version"
            )
        await self._objects.put(f"{info.model}/{info.version}/", files, progress, sent)
        if prepare is not None:
            await prepare(info)
        await jetstream.kv_put(self._link, self._bucket, key, manifest)
        if await self.desired(info.model) is None:
            await self.promote(info.model, info.version)
        return info

    async def artifact(
        self, model: str, version: str, name: str
    ) -> AsyncIterator[bytes | memoryview]:
        """An artifact in chunks. Raises `NotFound`. The caller checks its hash."""
        try:
            async for chunk in self._objects.read(f"{model}/{version}/{name}"):
                yield chunk
        except NotFound:
            text = f"{model}@{version} lacks the file {name!r} in this mesh"
            raise NotFound(text) from None

    async def fetch(self, model: str, version: str, names: list[str]) -> dict[str, bytes]:
        """Artifacts by name, whole. Raises `NotFound`. The caller checks their hashes."""
        files = {}
        for name in names:
            chunks = [chunk async for chunk in self.artifact(model, version, name)]
            files[name] = b"".join(chunks)
        return files

    async def lacking(self, model: str, version: str, names: Iterable[str]) -> list[str]:
        """Which of these artifacts, and of "manifest", the mesh does not have whole."""
        key = f"models.{token(model, 'model name')}.{token(version, 'version')}"
        manifest = await jetstream.kv_get(self._link, self._bucket, key)
        lacking = await self._objects.lacking(f"{model}/{version}/", names)
        return lacking if manifest is not None else [*lacking, "manifest"]
