"""The models of a mesh: artifacts in an object store, manifests and desired state in KV.

Keys of the bucket `swarm-<mesh>-config`:

    models.<model>.<version>   the manifest, JSON; immutable
    serve.<model>              desired state: {"serve": [{"version", "share"}], …}, JSON
    plan.<model>.<version>     the plan in force of nodes of role auto (`swarm.auto.plan_store`)
    abort.<model>.<plan>       this rollout was ended: {"node", "reason"}, JSON, written by a node
    lighter.<lighter>.<model>  a version of the model has named this lighter one; empty

A change of any key is republished as `swarm.<mesh>.config.<key>`. Both kinds are signed
(`swarm.security.signed_entries`) by who has a key, and checked, before anything parses them, by who
has a list of trusted keys. An abort is not signed: whatever stands there, it sends traffic back to
the version before, and can do nothing else. Nor is the name of a lighter model: by it the nodes of
that model answer for the other one, as far as their user may.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from swarm.documents import Copies, SignedDocuments, StoredDocument
from swarm.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    SwarmError,
    Unavailable,
    Untrusted,
)
from swarm.flow.objective import Objective
from swarm.link import Link, jetstream
from swarm.model import ModelInfo, lighter_misfit, unknown_model
from swarm.models.artifacts import Cut, ObjectStore, Source, evenly
from swarm.models.asked_versions import asked_by, check_asked, joined, with_asked
from swarm.models.push_claim import PushClaim, same_version
from swarm.models.recipes import Recipe
from swarm.routing import BadDesiredState, DesiredState, parse_desired
from swarm.routing.desired import read_desired
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.subjects import Subjects, api, token

log = logging.getLogger("swarm.registry")

PROMOTIONS = 8  # attempts at a change that others change at the same time
REASON_LIMIT = 500  # characters of an abort's reason
NO_REASON = "no reason was given"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class InForce:
    """A model's desired state. age: seconds since it was stored, by the server's clock; 0.0 where
    it has no rollout. aborted: why its rollout was ended, "" where it was not. refused: why what is
    stored now is not believed, and this is what was before; "" where this is what is stored."""

    document: Document
    state: DesiredState
    age: float = 0.0
    aborted: str = ""
    refused: str = ""

    @property
    def version(self) -> str:
        """The version with the largest share. A rollout's, once its time is over."""
        plan = self.state.rollout
        if plan is not None and not self.aborted and self.age >= plan.lasts:
            return plan.version
        return _largest(self.document)


class Registry:
    """Reads and writes the models of one mesh.

    signer: signs what is written; verifier: decides what is taken of what is read. Without them
    nothing is signed, and everything is taken. All methods raise `Unavailable` when the server
    cannot be reached, `SubjectError` for a name or version that is no token, and `Untrusted` for
    what the verifier refuses.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        signer: Identity | None = None,
        verifier: Verifier | None = None,
        copies: Copies | None = None,
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._bucket = subjects.config_bucket
        self._objects = ObjectStore(link, subjects.models_bucket)
        self._signer = signer
        self._verifier = verifier
        stored = link, self._bucket
        self._manifests = SignedDocuments(*stored, _read_manifest, signer, verifier, copies)
        self._desired = SignedDocuments(*stored, _read_desired, signer, verifier, copies)

    @property
    def signs_as(self) -> str:
        """The public key that signs what is written here; "" where nothing is signed."""
        return "" if self._signer is None else self._signer.public

    async def prepare(self) -> None:
        """Create the config bucket, unless it exists."""
        await jetstream.ensure_bucket(self._link, self._bucket, f"{self._subjects.root}.config")

    async def manifest(self, model: str, version: str) -> bytes:
        """A version's manifest, JSON. Raises `NotFound`."""
        key = f"models.{token(model, 'model name')}.{token(version, 'version')}"
        found = await self._manifests.read(key)
        if found.data is None:
            raise found.refusal or unknown_model(model, version)
        return found.data

    async def info(self, model: str, version: str = "") -> ModelInfo:
        """A version of a model; without a version, the one that `serving` names. Raises
        `NotFound`."""
        version = version or await self.serving(model)
        return ModelInfo.from_manifest(await self.manifest(model, version))

    async def serving(self, model: str) -> str:
        """The version with the largest share of the traffic. Raises `NotFound`."""
        present = await self.in_force(model)
        if present is None:
            raise unknown_model(model)
        return present.version

    async def served(self, model: str) -> str:
        """As `serving`; "" where no version is served, or by no desired state to rely on."""
        return _version_of((await self._present(model)).document)

    async def desired(self, model: str) -> Document | None:
        """The model's desired state, or None. Raises `BadDesiredState`."""
        return (await self._present(model)).believed()

    async def in_force(self, model: str) -> InForce | None:
        """The model's desired state, and what became of its rollout. Raises `BadDesiredState`."""
        entry = await self._present(model)
        document = entry.believed()
        if document is None:
            return None
        state = parse_desired(document | {"model": model})
        present = InForce(document, state, refused=str(entry.refusal or ""))
        if state.rollout is None or not entry.headers:
            return present  # from disk: how far the rollout has come is unknown
        try:
            aborted = await self.aborted(model, state.rollout.id)
            age = await jetstream.age_of(self._link, self._bucket, entry.headers)
        except PermissionDenied as error:
            # A user who may not read whether a rollout was ended keeps to the version before.
            return replace(present, aborted=f"this user cannot follow rollouts: {error}")
        return replace(present, age=age, aborted=aborted)

    async def _present(self, model: str) -> StoredDocument[Document]:
        return await self._desired.read(f"serve.{token(model, 'model name')}")

    async def aborted(self, model: str, plan: str) -> str:
        """Why this rollout was ended by a node; "" where it was not."""
        key = abort_key(model, plan)
        data, revision, _ = await jetstream.kv_message(self._link, self._bucket, key)
        return abort_reason(data or b"") if revision else ""

    async def _replace(
        self, model: str, document: Document, present: StoredDocument[Document]
    ) -> bool:
        """Whether the desired state was still the present one, and is this document now. The
        versions of other models that its versions ask are kept in service before that, those that
        nobody asks any more are let go of after it."""
        parse_desired(document | {"model": model})
        before = await asked_by(model, present.document, self.info)
        asked = await asked_by(model, document, self.info)
        for other, versions in joined(before, asked).items():
            await self._keep_asked(other, model, versions, asked.get(other, set()))
        written = await self._desired.write(
            f"serve.{model}", json.dumps(document).encode(), present
        )
        for other in before if written else ():
            await self._keep_asked(other, model, asked.get(other, set()))
        return written

    async def _keep_asked(
        self, model: str, asker: str, versions: set[str], needed: Collection[str] = ()
    ) -> None:
        """Have a model serve the versions that `asker` asks. needed: those that have to be there.
        Raises `NotFound`."""
        for _ in range(PROMOTIONS):
            present = await self._present(model)
            if not needed and present.document is None:
                return  # it is gone, or nobody can say
            for version in needed:
                await self.manifest(model, version)
            document = present.believed()
            if document is None:
                raise unknown_model(model)
            changed = with_asked(document, asker, versions)
            if changed == document or await self._replace(model, changed, present):
                return
        raise _busy(model)

    async def desire(self, model: str, document: Document) -> None:
        """Put a whole desired state in force, of versions that the mesh has.

        Raises `BadDesiredState`, `NotFound`.
        """
        parse_desired(document | {"model": model})
        for entry in document["serve"]:
            await self.manifest(model, entry["version"])
        for _ in range(PROMOTIONS):
            present = await self._present(model)
            asked = (present.document or {}).get("asked", {})  # is not the operator's to say
            kept = {name: value for name, value in document.items() if name != "asked"}
            if await self._replace(model, kept | ({"asked": asked} if asked else {}), present):
                return
        raise _busy(model)

    async def promote(self, model: str, version: str, done: str = "") -> str:
        """Let `version` serve all traffic; the policy and all else of the desired state stay, but
        for a rollout, which ends. done: the id of a rollout that is known to be done. Returns the
        version that served before, or "".

        Raises `NotFound`.
        """
        await self.manifest(model, version)
        for _ in range(PROMOTIONS):
            present = await self._after_rollout(model, done)
            if present.document is None and present.refusal is not None:
                log.warning("nothing of the present desired state is kept: %s", present.refusal)
            if await self._replace(model, _promoted(present.document, version), present):
                return _version_of(present.document)
        raise _busy(model)

    async def pin(self, model: str, agent: str, version: str) -> None:
        """Let an agent keep to a version; "" ends that. Raises `NotFound`, `InvalidArgument`."""
        if version:
            await self.manifest(model, version)

        def pinned(document: Document) -> Document:
            pins = dict(document.get("pins", {}))
            pins.pop(agent, None)
            return document | {"pins": pins | ({agent: version} if version else {})}

        await self.change(model, pinned)

    async def set_objective(self, model: str, objective: Objective | None) -> None:
        """Give a model's desired state another objective, or none; all else of it stays.

        Raises `NotFound` where nothing serves the model, and what made the present desired state be
        refused.
        """
        await self._set(model, "slo", None if objective is None else objective.as_doc())

    async def allow_samples(self, model: str, allowed: bool) -> None:
        """Whether an operator may take inputs from the model's traffic. Raises as
        `set_objective`."""
        await self._set(model, "samples", allowed)

    async def set_priority(self, model: str, priority: int) -> None:
        """Which models keep their place where devices have no room for all: the higher ones. Raises
        as `set_objective`, and `BadDesiredState` for a number out of range."""
        await self._set(model, "priority", priority)

    async def _set(self, model: str, name: str, value: Any) -> None:
        """Give one field of a model's desired state a value, None for no such field."""

        def with_value(document: Document) -> Document:
            kept = {field: value for field, value in document.items() if field != name}
            return kept if value is None else kept | {name: value}

        await self.change(model, with_value)

    async def change(
        self, model: str, changed: Callable[[Document], Document], done: str | None = None
    ) -> str:
        """Put `changed(document)` in the place of the desired state, whatever others change at the
        same time. done: as for `promote`; None leaves a rollout in the document, ended or not.
        Returns the version that served before.

        Raises `NotFound`, what `changed` raises, and what made the present desired state be
        refused.
        """
        for _ in range(PROMOTIONS):
            present = await (
                self._present(model) if done is None else self._after_rollout(model, done)
            )
            document = present.believed()
            if document is None:
                raise unknown_model(model)
            if await self._replace(model, changed(document), present):
                return _version_of(document)
        raise _busy(model)

    async def _after_rollout(self, model: str, done: str) -> StoredDocument[Document]:
        """The present state, in which a rollout that has ended is no more: the version of one that
        is done serves, that of an aborted one does not. One that runs is left in."""
        present = await self._present(model)
        plan = (present.document or {}).get("rollout")
        if present.document is None or plan is None:
            return present
        if await self.aborted(model, plan["id"]):
            return replace(present, document=_without_rollout(present.document))
        if plan["id"] != done:
            return present
        return replace(present, document=_promoted(present.document, plan["version"]))

    async def rollback(self, model: str) -> str:
        """Let the version that served before the present one serve again, and return it. During a
        rollout, and behind it, that is the version from which it began.

        Raises `NotFound`, and `Unavailable` where others change the desired state just now.
        """
        present = await self._after_rollout(model, "")
        document = present.believed() or {}
        if "rollout" in document:
            if not await self._replace(model, _without_rollout(document), present):
                raise _busy(model)
            return _version_of(document)
        previous = str(document.get("previous") or "")
        if not previous:
            raise NotFound(f"model {model!r} has no earlier version to go back to")
        await self.manifest(model, previous)
        if not await self._replace(model, _promoted(document, previous), present):
            raise _busy(model)
        return previous

    async def named(self) -> list[str]:
        """The models that have a desired state, sorted. Raises `PermissionDenied` for a user who
        may not list keys."""
        keys = await jetstream.kv_keys(self._link, self._bucket, "serve")
        return [key.removeprefix("serve.") for key in keys]

    async def models(self) -> list[tuple[str, str]]:
        """The model and version of each manifest that was pushed, sorted."""
        found = []
        for key in await jetstream.kv_keys(self._link, self._bucket, "models"):
            # A version that is being pushed has a key, and no manifest yet.
            if await jetstream.kv_get(self._link, self._bucket, key) is not None:
                _, model, version = key.split(".")
                found.append((model, version))
        return found

    async def serving_models(self) -> list[str]:
        """Names of the models of which a version serves, and which this user may read, sorted.
        Where no desired state is believed, those whose is not: who asks for one is told why."""
        believed, refused = [], []
        for key in await jetstream.kv_keys(self._link, self._bucket, "serve"):
            model = key.removeprefix("serve.")
            subject = api("DIRECT.GET", f"KV_{self._bucket}", f"$KV.{self._bucket}.{key}")
            if not self._link.may_call(subject):
                continue
            try:
                if await self.desired(model) is not None:
                    believed.append(model)
            except (BadDesiredState, Untrusted):
                refused.append(model)
        return believed or refused

    async def push(
        self,
        manifest: bytes,
        files: Mapping[str, Source],
        progress: Callable[[str, int], None] = lambda name, size: None,
        prepare: Callable[[ModelInfo], Awaitable[None]] | None = None,
        *,
        sent: Callable[[int], None] = lambda size: None,
        cut: Cut = evenly,
    ) -> ModelInfo:
        """Store a version: its files first, its manifest last, so it appears whole.

        files: artifacts by name, as bytes or as paths; `progress(name, bytes)` is called before
        each, `sent(bytes)` after each part that is stored; cut: the pieces of a file, of which a
        reader fetches those that it has not. prepare(info) is awaited before the
        manifest: nodes find there what it has made.

        The versions of other models that it asks are there already, else `NotFound` is raised.

        The first version of a model serves at once. The manifest of a version that exists stays
        where this one differs in what was measured alone. Raises `InvalidArgument` when the
        version exists with other content: versions are immutable. What lies in a version's place
        and is none is replaced: no manifest of it, or one that the verifier refuses. Raises
        `Unavailable` where somebody else begins to push the version before this push has ended,
        with other content: of such pushes the one that began last stores it. Raises
        `InvalidArgument` where the lighter model that it names is not in the mesh, or does not fit.
        """
        info = ModelInfo.from_manifest(manifest)
        await check_asked(info, self.info)
        await self.prepare()
        await self._check_lighter(info)
        key = f"models.{info.model}.{info.version}"
        existing, revision, headers = await jetstream.kv_message(self._link, self._bucket, key)
        if existing is not None and existing != manifest:
            spoiled = self._spoiled(key, existing, headers)
            believed = (await self._manifests.read(key)).data if spoiled else existing
            if believed is not None and not same_version(believed, manifest):
                raise InvalidArgument(
                    f"{info.model}@{info.version} exists and versions are immutable: "
                    "split again with another --version"
                )
            if spoiled:
                log.warning("%s was spoiled, and is replaced: %s", key, spoiled)
            if believed is not None:
                manifest = believed  # what was measured first stays
        claim = PushClaim(self._link, self._bucket, key, manifest, revision)
        if existing != manifest:
            await claim.make(headers)
        prefix = f"{info.model}/{info.version}/"
        await self._objects.put(prefix, files, progress, sent=sent, cut=cut, may_store=claim.check)
        if prepare is not None:
            await claim.check()
            await prepare(info)
        counter = 0
        if existing is not None and self._verifier is not None:
            with contextlib.suppress(Untrusted):  # it is replaced by the same, signed
                counter = self._verifier.check(self._bucket, key, existing, headers).counter
        over: StoredDocument[ModelInfo] = StoredDocument(
            None, revision=claim.revision, counter=counter
        )
        written = await self._manifests.write(key, manifest, over)
        if info.lighter is not None:
            key = f"lighter.{info.lighter.model}.{info.model}"
            await jetstream.kv_put(self._link, self._bucket, key, b"")
        # Others may have stored the same; a server that is behind shows our claim still.
        if not written:
            found = await jetstream.kv_get(self._link, self._bucket, key)
            if found is None or not same_version(found, manifest):
                raise claim.lost()
        present = await self._present(info.model)
        if present.document is None and present.refusal is None:
            await self.promote(info.model, info.version)
        return info

    async def _check_lighter(self, info: ModelInfo) -> None:
        if info.lighter is None:
            return
        try:
            lighter = await self.info(info.lighter.model, info.lighter.version)
        except NotFound:
            raise InvalidArgument(
                f"{info.model}@{info.version} names the lighter model {info.lighter}, which is not "
                "in this mesh: push that one first"
            ) from None
        if misfit := lighter_misfit(info, lighter):
            raise InvalidArgument(f"the lighter model {info.lighter} does not fit: {misfit}")

    async def lighter_of(self, model: str) -> list[str]:
        """The models that have named this one as their lighter model, sorted."""
        keys = await jetstream.kv_keys(self._link, self._bucket, f"lighter.{model}")
        return [key.rpartition(".")[2] for key in keys]

    def _spoiled(self, key: str, existing: bytes, headers: bytes) -> str:
        """Why what lies in a version's place is not that version; "" where it is."""
        try:
            _read_manifest(key, existing)
            if self._verifier is not None:
                self._verifier.check(self._bucket, key, existing, headers)
        except SwarmError as error:
            return str(error)
        return ""

    async def forget(self, model: str, version: str) -> None:
        """Remove a version's manifest: the version is not in the mesh any more."""
        key = f"models.{token(model, 'model name')}.{token(version, 'version')}"
        stale = [key]
        if await jetstream.kv_keys(self._link, self._bucket, f"models.{model}") == [key]:
            stale.append(f"lighter.*.{model}")
        for each in stale:
            await jetstream.call(
                self._link,
                api("STREAM.PURGE", f"KV_{self._bucket}"),
                {"filter": f"$KV.{self._bucket}.{each}"},
            )

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

    async def recipe(self, model: str, version: str, name: str) -> Recipe | None:
        """The pieces of an artifact, or None: then it is to be read as a whole. Not signed: who
        puts an artifact together by it compares the whole with its hash."""
        return await self._objects.recipe(f"{model}/{version}/", name)

    def part(self, recipe: Recipe, begin: int, end: int) -> AsyncIterator[bytes | memoryview]:
        """The bytes [begin, end) of the artifact of a recipe. The caller checks their hash."""
        return self._objects.read_part(recipe, begin, end)

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


def _largest(document: Document) -> str:
    entries = document["serve"]
    return str(max(entries, key=lambda entry: float(str(entry["share"])))["version"])


def _version_of(document: Document | None) -> str:
    """The version with the largest share, or ""."""
    return "" if document is None else _largest(document)


def _read_manifest(key: str, data: bytes) -> ModelInfo:
    """Raises `InvalidArgument` for what is no manifest of this key's version."""
    found = ModelInfo.from_manifest(data)
    _, model, version = key.split(".")
    if (found.model, found.version) != (model, version):
        raise InvalidArgument(
            f"in the place of {model}@{version} is the manifest of {found.model}@{found.version}"
        )
    return found


def _read_desired(key: str, data: bytes) -> Document:
    return read_desired(key.removeprefix("serve."), data)


def abort_reason(data: bytes | memoryview) -> str:
    """Why a rollout was ended. An abort counts, whatever stands in it."""
    try:
        return str(json.loads(bytes(data))["reason"])[:REASON_LIMIT] or NO_REASON
    except (ValueError, KeyError, TypeError, RecursionError):
        return NO_REASON


def abort_key(model: str, plan: str) -> str:
    """The key whose value ends this rollout."""
    return f"abort.{token(model, 'model name')}.{token(plan, 'plan')}"


def _without_rollout(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "rollout"}


def _promoted(present: Document | None, version: str) -> Document:
    """The present desired state, with one version for all traffic, and no rollout."""
    doc = _without_rollout(present or {})
    # To promote the version that serves signs it anew: the way back stays.
    if version != (before := _version_of(present)):
        doc["previous"] = before
    doc.setdefault("previous", "")
    doc["serve"] = [{"version": version, "share": 100}]
    return doc


def _busy(model: str) -> Unavailable:
    return Unavailable(
        f"others change what serves {model!r} at the same time: look at `swarm model list`, "
        "and try again"
    )
