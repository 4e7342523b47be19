"""The weight versions of a mesh's models, kept by its server.

Keys of the bucket `swarm-<mesh>-weights`:

    ledger.<model>.<version>                    the `Ledger`, JSON; replaced by compare-and-set
    tensors.<model>.<version>.<stored>.<part>   the tensors' bytes of a kept record, in parts

Of each ledger the bucket keeps some older revisions, for who cannot believe the newest. A change of
a ledger is announced on `swarm.<mesh>.weights.<model>.<version>`, without its value:
whoever hears it reads the ledger. Everything goes over the mesh's own link.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from swarm.documents import SignedDocuments, StoredDocument
from swarm.errors import (
    ApiError,
    InvalidArgument,
    NotAllowed,
    SwarmError,
    Unavailable,
)
from swarm.learning.record import KEPT, Ledger, Sign, WeightRecord, packed, unpacked
from swarm.learning.subjects import LearningSubjects
from swarm.link import Link, LinkMessage, jetstream
from swarm.security.identity import Identity
from swarm.security.signing import sign, verify
from swarm.security.trusted_keys import AllowList
from swarm.subjects import Subjects, api, token

CONTEXT = "swarm weights 1"  # of a record's signature
MOST_BYTES = 64 << 20  # of one weight version's tensors
PART = 512 << 10  # bytes
PARTS_AT_A_TIME = 8
DELETED = b"NATS/1.0\r\nKV-Operation: PURGE\r\nNats-TTL: 1s\r\n\r\n"
ROLLBACK_TRIES = 5
TRY_AGAIN_AFTER = 0.02  # seconds


def ledger_of(stored: StoredDocument[Ledger], base: str) -> Ledger:
    """The ledger, or an empty one. Raises `InvalidArgument` for a ledger of another base."""
    ledger = stored.document
    if ledger is None:
        return Ledger(base)
    if ledger.base != base:
        raise InvalidArgument(
            f"the weight versions kept are of the base {ledger.base[:12]}…, "
            f"this node has {base[:12]}…"
        )
    return ledger


def store_config(subjects: Subjects) -> dict[str, Any]:
    """The configuration of the bucket's stream, as JetStream's API takes it."""
    bucket = LearningSubjects.of(subjects).weights_bucket
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "max_msgs_per_subject": KEPT,  # their records' tensors are there, too
        "storage": "file",
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": False,  # by one, a learner of one model would delete all others'
        "allow_msg_ttl": True,
        "allow_direct": True,
        "republish": {
            "src": f"$KV.{bucket}.ledger.>",
            "dest": f"{subjects.root}.weights.>",
            "headers_only": True,
        },
    }


class Weights:
    """Reads and writes the weight versions of one mesh's models.

    identity: signs what is written here; None signs nothing. allowed: whose present weight version
    is taken; one with no or another key is refused. signed: whether a weight version that nobody
    has signed is refused too, where `allowed` names no keys.

    All methods raise `Unavailable` when the server cannot be reached, and `SubjectError` for a name
    or version that is no token.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        identity: Identity | None = None,
        allowed: AllowList | None = None,
        *,
        signed: bool = False,
    ) -> None:
        self._signed = signed
        self._identity = identity
        self._allowed = allowed or AllowList()
        self._link = link
        self._subjects = LearningSubjects.of(subjects)
        self._bucket = self._subjects.weights_bucket
        self._ledgers = SignedDocuments(link, self._bucket, self._checked)
        self._seen: dict[str, int] = {}  # the highest weight version by the ledger's key

    async def prepare(self) -> None:
        """Create the bucket, unless it exists. Raises `Unavailable` where this process may not."""
        name = f"KV_{self._bucket}"
        try:
            # A learner may look, where the mesh gives rights, and may not create streams.
            found = await jetstream.call(self._link, api("STREAM.INFO", name))
            await jetstream.forbid_rollups(self._link, found["config"])
            return
        except ApiError as error:
            if error.err_code != jetstream.STREAM_NOT_FOUND:
                raise
        try:
            await jetstream.ensure_stream(self._link, store_config(self._subjects))
        except Unavailable as error:
            raise Unavailable(
                f"this mesh has no store of weight versions, and it cannot be made from here "
                f"({error}): an operator's `swarm model push` makes it"
            ) from None

    async def read(self, model: str, version: str) -> StoredDocument[Ledger]:
        """The ledger of a model version: the newest that can be believed, of no lower weight
        version than was read here before.

        Raises, where there is no such ledger, what is wrong with the newest: `DecodeError` where
        its chain is broken, `BadSignature` where the present record was changed, `NotAllowed` where
        its key may not teach.
        """
        key = _ledger_key(model, version)
        stored = await self._ledgers.read(key)
        ledger, seen = stored.believed(), self._seen.get(key, 0)
        if ledger is not None:
            if stored.refusal is not None and ledger.n < seen:
                raise stored.refusal
            self._seen[key] = max(ledger.n, seen)
        return stored

    def _checked(self, key: str, data: bytes) -> Ledger:
        ledger = Ledger.from_json(data)
        if ledger.present is not None:
            _, model, version = key.split(".")
            self._verify(model, version, ledger.present)
        return ledger

    def _verify(self, model: str, version: str, record: WeightRecord) -> None:
        """The chain holds for the records before this one."""
        if record.key:
            claim = self._claim(model, version, record.payload())
            verify(record.key, CONTEXT, claim, record.signature)
        elif self._signed:
            raise NotAllowed(
                f"weight version {record.n} of {model}@{version}, by {record.by}, is signed by "
                "nobody: give its maker an --identity, or start this node with --allow-unsigned"
            )
        if self._allowed.keys is not None and not self._allowed.allows(record.key):
            raise NotAllowed(
                f"weight version {record.n} of {model}@{version}, by {record.by}, is signed by "
                f"{record.key or 'nobody'}: no key on the list of those who may teach"
            )

    def _claim(self, model: str, version: str, payload: bytes) -> bytes:
        """A record is signed for one model version of one mesh."""
        return f"{self._subjects.mesh}/{model}/{version}\n".encode() + payload

    def _signing(self, model: str, version: str) -> tuple[str, Sign | None]:
        """This node's public key, and how it signs a record."""
        identity = self._identity
        if identity is None:
            return "", None
        return identity.public, lambda payload: sign(
            identity, CONTEXT, self._claim(model, version, payload)
        )

    async def mint(
        self,
        model: str,
        version: str,
        base: str,
        known: StoredDocument[Ledger],
        tensors: Mapping[str, np.ndarray],
        *,
        by: str,
        at: float,
        accuracy: float | None,
        samples: int,
        taught: Iterable[str],
    ) -> WeightRecord | None:
        """Make `tensors` the next weight version; None where another node minted meanwhile.

        known: the ledger as it was read before, which the server compares. Other arguments: see
        `WeightRecord`. Raises `InvalidArgument` for tensors that cannot be a weight version, and
        `NotAllowed` where others have minted, who may not teach here: others may let them.
        """
        if isinstance(known.refusal, NotAllowed):
            raise known.refusal
        before = ledger_of(known, base)
        key, signed = self._signing(model, version)
        after = before.minted(
            tensors,
            by=by,
            at=at,
            accuracy=accuracy,
            samples=samples,
            taught=taught,
            key=key,
            sign=signed,
        )
        record = after.records[-1]
        data = packed(tensors)
        if len(data) > MOST_BYTES:
            raise InvalidArgument(
                f"{len(data)} bytes of tensors; a weight version has at most {MOST_BYTES}"
            )
        await self._store(model, version, record.stored, data)
        if not await self._replace(model, version, after, known):
            now = (await self.read(model, version)).document
            if now is not None:
                await self._clean(model, version, now)
            return None
        await self._clean(model, version, after)
        return record

    async def roll_back(
        self, model: str, version: str, n: int, *, by: str, at: float
    ) -> WeightRecord:
        """Bring weight version `n` back, 0 for the base, on the whole fleet; returns the record.

        Raises `NotFound` for a version that is not kept, and `InvalidArgument` where nothing was
        minted yet.
        """
        key, signed = self._signing(model, version)
        for _ in range(ROLLBACK_TRIES):
            known = await self.read(model, version)
            if known.document is None:
                raise InvalidArgument(f"{model}@{version} has learned nothing: the base serves")
            after = known.document.restored(n, by=by, at=at, key=key, sign=signed)
            if await self._replace(model, version, after, known):
                await self._clean(model, version, after)
                return after.records[-1]
            await asyncio.sleep(TRY_AGAIN_AFTER)  # a minter was sooner: its version is before ours
        raise Unavailable(f"{model}@{version} changes all the time: try again")

    async def tensors(
        self, model: str, version: str, record: WeightRecord
    ) -> dict[str, np.ndarray]:
        """The tensors of a kept record, {} where it restores the base.

        Raises `DecodeError` where they are not the record's, `Unavailable` where they are gone:
        read the ledger again then.
        """
        size = sum(tensor.nbytes for tensor in record.tensors.values())
        if size > MOST_BYTES:
            raise InvalidArgument(f"weight version {record.n} claims {size} bytes of tensors")
        pieces: list[bytes] = []
        count = -(-size // PART)
        for first in range(0, count, PARTS_AT_A_TIME):
            numbers = range(first, min(count, first + PARTS_AT_A_TIME))
            keys = [_part_key(model, version, record.stored, part) for part in numbers]
            found = await asyncio.gather(
                *(jetstream.kv_get(self._link, self._bucket, key) for key in keys)
            )
            for piece in found:
                if piece is None:
                    raise Unavailable(f"the tensors of weight version {record.n} are gone")
                pieces.append(piece)
        return unpacked(record, b"".join(pieces)) if record.tensors else {}

    def watch(self, model: str, version: str, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` whenever the ledger changed, or may have; returns what ends this."""
        subject = self._subjects.weights(model, version)

        def announced(message: LinkMessage) -> None:
            key = _ledger_key(model, version)
            jetstream.heard_of(self._link, self._bucket, key, message)
            on_change()

        sid = self._link.subscribe(subject, announced)
        self._link.on_up.append(on_change)

        def end() -> None:
            self._link.unsubscribe(sid)
            with contextlib.suppress(ValueError):
                self._link.on_up.remove(on_change)

        return end

    async def _replace(
        self, model: str, version: str, ledger: Ledger, known: StoredDocument[Ledger]
    ) -> bool:
        """Whether the ledger was still the one that is known, and is this one now."""
        key = _ledger_key(model, version)
        return await self._ledgers.write(key, ledger.to_json(), known)

    async def _store(self, model: str, version: str, stored: str, data: bytes) -> None:
        for part, start in enumerate(range(0, len(data), PART)):
            key = _part_key(model, version, stored, part)
            await jetstream.kv_put(self._link, self._bucket, key, data[start : start + PART])

    async def _clean(self, model: str, version: str, ledger: Ledger) -> None:
        """Delete the tensors that no kept record needs, and no coming one can. What cannot be
        deleted now is found by the next minter."""
        with contextlib.suppress(SwarmError):
            keys = await jetstream.kv_keys(self._link, self._bucket, f"tensors.{model}.{version}")
            for key in keys:
                if ledger.is_garbage(key.split(".")[3]):
                    # Markers, which go by themselves, push all of the key's revisions out: rights
                    # to delete, and those to roll up, would be rights over all models.
                    deleted = self._link.in_domain(f"$KV.{self._bucket}.{key}")
                    for _ in range(KEPT):
                        self._link.publish(deleted, b"", headers=DELETED)


def _ledger_key(model: str, version: str) -> str:
    return f"ledger.{token(model, 'model name')}.{token(version, 'version')}"


def _part_key(model: str, version: str, stored: str, part: int) -> str:
    name = token(stored, "name of stored tensors")
    return f"tensors.{token(model, 'model name')}.{token(version, 'version')}.{name}.{part}"
