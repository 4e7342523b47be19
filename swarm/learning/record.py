"""Weight versions: what a model version's weights became, and who says so.

A *weight version* is a number of a model version: 0 is its base, the weights that it was split
with. Each further number has an immutable record in the *ledger*, one document that is replaced as
a whole by compare-and-set: one minter wins each number. A record names the record before it by
its hash (the first one names the base), so a ledger with a changed record is refused.

Going back to version N is a record too: it has the next number, the tensors of N, and a raised
*epoch*. Deltas of an older epoch are void, wherever they are on their way. So numbers only
grow, and all nodes see the same order of minting and going back.

The ledger keeps the last `KEPT` records: those versions can be restored, and the base.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from swarm.errors import DecodeError, InvalidArgument, NotFound
from swarm.subjects import TOKEN
from swarm.wire.tensors import DTYPES, datatype_of, memory_of, plain, read_spec

FORMAT = 1
KEPT = 16  # records of a ledger
MOST_TENSORS = 64  # of one weight version
MOST_TEACHERS = 32  # that one record names
MOST_LEDGER_BYTES = 1 << 20
LARGEST_WHOLE = 1 << 53  # of a record's numbers: they travel with each request
LARGEST_NUMBER = 1e300
_DIGEST = re.compile(r"[0-9a-f]{64}")

Sign = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class TensorOf:
    """A tensor of a weight version. sha256: of its little-endian bytes in C order."""

    datatype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def nbytes(self) -> int:
        return DTYPES[self.datatype].itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WeightRecord:
    """One weight version.

    n: its number, from 1 on. parent: the hash of the record n - 1; of the first one, `base`. base:
    SHA-256 of the file whose tensors change. epoch: raised by each going back. tensors: full
    values of the changed tensors, by name; none where the base is restored. stored: under which
    name the tensors' bytes are kept. by: the node that minted it. at: seconds since 1970.
    accuracy: 0 to 1, on the minter's held-out samples, whose count is `samples`; None where it was
    not measured. taught: the nodes whose deltas are in it. restores: the version that it brings
    back, or None.
    key, signature: the minter's public key, and its signature of `payload()`; "" and b"" unsigned.
    """

    n: int
    parent: str
    base: str
    epoch: int
    tensors: Mapping[str, TensorOf]
    stored: str
    by: str
    at: float
    accuracy: float | None = None
    samples: int = 0
    taught: tuple[str, ...] = ()
    restores: int | None = None
    key: str = ""
    signature: bytes = b""

    def payload(self) -> bytes:
        """The bytes that are signed and hashed: canonical JSON of all fields but the signature."""
        doc = self.as_doc()
        del doc["signature"]
        return json.dumps(doc, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def hash(self) -> str:
        """SHA-256 of the payload and the signature, which the next record names as its parent."""
        return hashlib.sha256(self.payload() + self.signature).hexdigest()

    def as_doc(self) -> dict[str, Any]:
        return asdict(self) | {"signature": self.signature.hex()}

    @classmethod
    def from_doc(cls, doc: Any) -> WeightRecord:
        """Raises `DecodeError`."""
        try:
            record = cls(
                n=_whole(doc["n"], 1),
                parent=_digest(doc["parent"]),
                base=_digest(doc["base"]),
                epoch=_whole(doc["epoch"]),
                tensors=_tensors(doc["tensors"]),
                stored=_text(doc["stored"]),
                by=_text(doc["by"]),
                at=_number(doc["at"]),
                accuracy=None if doc["accuracy"] is None else _number(doc["accuracy"]),
                samples=_whole(doc["samples"]),
                taught=tuple(_text(name) for name in _few(doc["taught"], MOST_TEACHERS)),
                restores=None if doc["restores"] is None else _whole(doc["restores"]),
                key=_text(doc["key"]),
                signature=bytes.fromhex(doc["signature"]),
            )
        except DecodeError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DecodeError(f"this is no record of a weight version: {error!r:.200}") from None
        if record.tensors and TOKEN.fullmatch(record.stored) is None:
            raise DecodeError(f"weight version {record.n}: {record.stored!r:.80} is no name")
        return record


@dataclass(frozen=True, slots=True)
class Ledger:
    """The records that are kept, oldest first; the last one is the present weight version.

    lost: the number and the epoch of the last record, where the server lost all records and a
    learner still knows them. The next record's number follows on it: a node that serves version 40
    would not take a version 1."""

    base: str
    records: tuple[WeightRecord, ...] = ()
    lost: tuple[int, int] = (0, 0)

    @property
    def present(self) -> WeightRecord | None:
        return self.records[-1] if self.records else None

    @property
    def n(self) -> int:
        """The present weight version; 0 where nothing was minted."""
        return self.records[-1].n if self.records else self.lost[0]

    @property
    def epoch(self) -> int:
        return self.records[-1].epoch if self.records else self.lost[1]

    @property
    def head(self) -> str:
        """What the next record names as its parent."""
        return self.records[-1].hash if self.records else self.base

    def record(self, n: int) -> WeightRecord:
        """Raises `NotFound`, which names the versions that are kept."""
        for record in self.records:
            if record.n == n:
                return record
        kept = f"{self.records[0].n} to {self.n}" if self.records else "none"
        raise NotFound(f"weight version {n} is not kept; kept are {kept}, and the base, 0")

    def minted(
        self,
        tensors: Mapping[str, np.ndarray],
        *,
        by: str,
        at: float,
        accuracy: float | None,
        samples: int,
        taught: Iterable[str],
        key: str = "",
        sign: Sign | None = None,
    ) -> Ledger:
        """This ledger with one more weight version. Raises `InvalidArgument` for tensors that
        cannot be one."""
        check_tensors(tensors)
        described = {name: described_tensor(array) for name, array in sorted(tensors.items())}
        n = self.n + 1
        record = WeightRecord(
            n=n,
            parent=self.head,
            base=self.base,
            epoch=self.epoch,
            tensors=described,
            stored=f"{n}-{digest_of(described)[:16]}",
            by=by,
            at=round(at, 3),
            accuracy=None if accuracy is None else round(accuracy, 4),
            samples=samples,
            taught=tuple(sorted(set(taught)))[:MOST_TEACHERS],
            key=key,
        )
        return self._with(_signed(record, sign))

    def restored(
        self, n: int, *, by: str, at: float, key: str = "", sign: Sign | None = None
    ) -> Ledger:
        """This ledger with a record that brings version n back, and voids all deltas under way.

        Raises `NotFound` for a version that is not kept, and `InvalidArgument` where nothing was
        minted yet.
        """
        present = self.present
        if present is None:
            raise InvalidArgument("there is no weight version yet: the base serves already")
        old = (
            self.record(n)
            if n
            else replace(present, tensors={}, stored="", accuracy=None, samples=0, taught=())
        )
        record = replace(
            old,
            n=self.n + 1,
            parent=self.head,
            epoch=self.epoch + 1,
            by=by,
            at=round(at, 3),
            restores=n,
            key=key,
            signature=b"",
        )
        return self._with(_signed(record, sign))

    def _with(self, record: WeightRecord) -> Ledger:
        return replace(self, records=(*self.records, record)[-KEPT:])

    def stored(self) -> set[str]:
        """The names under which tensors of kept records are stored."""
        return {record.stored for record in self.records if record.stored}

    def is_garbage(self, stored: str) -> bool:
        """Whether stored tensors belong to no kept record, and cannot belong to a coming one."""
        n = stored.partition("-")[0]
        return stored not in self.stored() and not (n.isdigit() and int(n) > self.n)

    def to_json(self) -> bytes:
        doc = {
            "v": FORMAT,
            "base": self.base,
            "records": [record.as_doc() for record in self.records],
        }
        return json.dumps(doc, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Ledger:
        """Raises `DecodeError` for a document that is no ledger, or whose chain is broken."""
        if len(data) > MOST_LEDGER_BYTES:
            raise DecodeError(f"a ledger of {len(data)} bytes; at most {MOST_LEDGER_BYTES}")
        try:
            doc = json.loads(data)
            if doc["v"] != FORMAT:
                raise DecodeError(f"a ledger of format {doc['v']!r:.20}; this node reads {FORMAT}")
            base = _digest(doc["base"])
            records = [WeightRecord.from_doc(record) for record in _few(doc["records"], KEPT)]
        except DecodeError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise DecodeError(f"this is no ledger of weight versions: {error!r:.200}") from None
        _check_chain(base, records)
        return cls(base, tuple(records))


def _check_chain(base: str, records: list[WeightRecord]) -> None:
    before: WeightRecord | None = None
    for record in records:
        if record.base != base:
            raise DecodeError(f"weight version {record.n} is of another base")
        if before is None:
            whole = record.n > 1 or record.parent == base
        else:
            raised = record.epoch - before.epoch
            whole = (
                record.n == before.n + 1
                and record.parent == before.hash
                and raised == (record.restores is not None)
            )
        if not whole:
            raise DecodeError(f"the chain of weight versions is broken at {record.n}")
        before = record


def check_tensors(tensors: Mapping[str, np.ndarray]) -> None:
    """Raises `InvalidArgument` for tensors that cannot be a weight version."""
    if not 0 < len(tensors) <= MOST_TENSORS:
        raise InvalidArgument(f"a weight version has 1 to {MOST_TENSORS} tensors")
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidArgument(f"tensor {name!r} has values that are not finite")


def described_tensor(array: np.ndarray) -> TensorOf:
    """Datatype, shape and hash of an array."""
    digest = hashlib.sha256(memory_of(plain(array))).hexdigest()
    return TensorOf(datatype_of(array), array.shape, digest)


def digest_of(tensors: Mapping[str, TensorOf]) -> str:
    """SHA-256 over names, datatypes, shapes and hashes, in hexadecimal."""
    lines = [
        [name, tensors[name].datatype, list(tensors[name].shape), tensors[name].sha256]
        for name in sorted(tensors)
    ]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def packed(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The tensors' bytes, one after the other in the order of their names."""
    return b"".join(memory_of(plain(tensors[name])) for name in sorted(tensors))


def unpacked(record: WeightRecord, data: bytes) -> dict[str, np.ndarray]:
    """The tensors of a record from their `packed` bytes, read-only.

    Raises `DecodeError` unless each has the record's size and hash.
    """
    if len(data) != sum(tensor.nbytes for tensor in record.tensors.values()):
        raise DecodeError(f"weight version {record.n}: {len(data)} bytes of tensors are too few")
    tensors: dict[str, np.ndarray] = {}
    at = 0
    for name in sorted(record.tensors):
        tensor = record.tensors[name]
        piece = data[at : at + tensor.nbytes]
        at += tensor.nbytes
        if hashlib.sha256(piece).hexdigest() != tensor.sha256:
            raise DecodeError(f"weight version {record.n}: tensor {name!r} has another hash")
        try:
            tensors[name] = np.ndarray(tensor.shape, DTYPES[tensor.datatype], piece)
        except ValueError:  # a dimension of 0 beside ones whose product no array may have
            raise DecodeError(
                f"weight version {record.n}: tensor {name!r}: shape {list(tensor.shape)} is too "
                "large"
            ) from None
    return tensors


def _signed(record: WeightRecord, sign: Sign | None) -> WeightRecord:
    return record if sign is None else replace(record, signature=sign(record.payload()))


def _tensors(docs: Any) -> dict[str, TensorOf]:
    if not isinstance(docs, dict) or len(docs) > MOST_TENSORS:
        raise DecodeError(f"the tensors of a weight version are a map of at most {MOST_TENSORS}")
    tensors = {}
    for name, doc in docs.items():
        read_spec(name, doc["datatype"], doc["shape"])
        tensors[name] = TensorOf(doc["datatype"], tuple(doc["shape"]), _digest(doc["sha256"]))
    return tensors


def _digest(value: object) -> str:
    if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
        raise DecodeError(f"{value!r:.80} is no SHA-256 in lower-case hexadecimal")
    return value


def _whole(value: object, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= LARGEST_WHOLE:
        raise DecodeError(f"{value!r:.80} is no whole number from {least} on")
    return value


def _number(value: Any) -> float:
    # Refuses NaN, infinity, and integers that no float can hold.
    if type(value) not in (int, float) or not abs(value) < LARGEST_NUMBER:
        raise DecodeError(f"{value!r:.80} is no number")
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 128:
        raise DecodeError(f"{value!r:.80} is no text of at most 128 characters")
    return value


def _few(value: object, most: int) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise DecodeError(f"a list of at most {most} is expected")
    return value
