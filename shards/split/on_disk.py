"""Models whose weights stay on the disk while they are split.

A message of protobuf holds all weights, its bytes hold them again, and a session once more. So
of a large file the weights are left where they are: in the file itself, or beside it. The message
names their places. A session maps them. A shard's file is written with its weights inside, byte by
byte what `SerializeToString` gives, without ever having been in memory.
"""

from __future__ import annotations

import hashlib
import mmap
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from onnx import GraphProto, ModelProto, TensorProto

from shards.errors import ModelError
from shards.foreign import foreign
from shards.graph.source import LEAST_EXTERNAL, external_place, normalize
from shards.weights.protobuf import BYTES, Field, bytes_field, fields, joined, write_varint

LARGE = 64 << 20  # bytes of a file, its external data included, from which on weights stay there
_CHUNK = 1 << 20
_SCRATCH = ".scratch"
# ModelProto, GraphProto, TensorProto.
_MODEL_GRAPH, _GRAPH_INITIALIZER = 7, 5
_TENSOR_RAW, _TENSOR_LOCATION = 9, 14


@dataclass(frozen=True)
class ModelOnDisk:
    """A model in normal form whose large weights lie in files of `folder`, and the SHA-256 of all
    its bytes."""

    model: ModelProto
    digest: str
    folder: Path


def open_large(path: Path) -> ModelOnDisk | None:
    """A model whose weights stay on the disk; None where the file is small, or is to be read.

    Raises ModelError for what is no ONNX model, and for external data that is not there.
    """
    told = foreign(path)
    if told is not None:
        raise ModelError(told)
    try:
        size = path.stat().st_size
        if not size:
            return None
        with path.open("rb") as handle:
            with _mapped(handle.fileno()) as mapped, memoryview(mapped) as view:
                slim, has_external = _slim(view, path.resolve().name)
            model = ModelProto.FromString(slim)
            digest = hashlib.file_digest(handle, "sha256")
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    except Exception as error:  # protobuf's own error type, which differs between backends
        raise ModelError(f"{path} is not an ONNX model: {error}") from error
    folder = path.parent if has_external else path.resolve().parent
    files: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            name, offset, length = external_place(tensor)
            file = (folder / name).resolve()
            if not file.is_relative_to(folder.resolve()) or not file.is_file():
                raise ModelError(f"cannot read the external data of {path}: {name}")
            if offset + length > files.setdefault(name, file.stat().st_size):
                raise ModelError(f"the external data of {path} is cut short: {name}")
    if size + sum(files.values() if has_external else ()) < LARGE:
        return None
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{path} is not an ONNX model: it has no graph or no operator set")
    if has_external:
        for name in sorted(files):
            with (folder / name).open("rb") as handle:
                while chunk := handle.read(_CHUNK):
                    digest.update(chunk)
    return ModelOnDisk(normalize(model), digest.hexdigest(), folder)


def _mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)


def _slim(message: memoryview, name: str) -> tuple[bytes, bool]:
    """The bytes of a model whose large weights are named by their place in this file; and whether
    weights are external already, in which case all stay as they are."""
    parts: list[bytes | memoryview] = []
    has_external = False
    for outer in fields(message):
        if outer.number != _MODEL_GRAPH or outer.kind != BYTES:
            parts.append(message[outer.begin : outer.end])
            continue
        graph: list[bytes | memoryview] = []
        start = outer.end - len(outer.data)
        for inner in fields(outer.data):
            whole: bytes | memoryview = outer.data[inner.begin : inner.end]
            if inner.number == _GRAPH_INITIALIZER and inner.kind == BYTES:
                begin = start + inner.end - len(inner.data)
                tensor = list(fields(inner.data))
                has_external |= any(f.number == _TENSOR_LOCATION and f.value for f in tensor)
                whole = _without_raw(inner.data, tensor, begin, name) or whole
            graph.append(whole)
        parts.append(bytes_field(_MODEL_GRAPH, joined(graph)))
    return (bytes(message) if has_external else joined(parts)), has_external


def _without_raw(
    message: memoryview, tensor: list[Field], begin: int, name: str
) -> bytes | memoryview | None:
    """A weight's field with the place of its bytes instead of them; None for a small one."""
    raw = next((f for f in tensor if f.number == _TENSOR_RAW and f.kind == BYTES), None)
    if raw is None or len(raw.data) < LEAST_EXTERNAL:
        return None
    rest = joined([message[f.begin : f.end] for f in tensor if f is not raw])
    place = TensorProto(data_location=TensorProto.EXTERNAL)
    offset = begin + raw.end - len(raw.data)
    for key, value in (("location", name), ("offset", offset), ("length", len(raw.data))):
        place.external_data.add(key=key, value=str(value))
    return bytes_field(_GRAPH_INITIALIZER, rest + place.SerializeToString())


class Files(Mapping[str, bytes]):
    """Artifacts by name, in a folder of their own that goes with this object. An artifact is read
    each time that it is asked for; `path` says where it lies."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="split-")
        self._names: dict[str, None] = {}

    def __getitem__(self, name: str) -> bytes:
        if name not in self._names:
            raise KeyError(name)
        return self.path(name).read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def path(self, name: str) -> Path:
        """The file of an artifact."""
        return Path(self._folder.name) / name

    def scratch(self) -> Path:
        """A folder beside the artifacts for what is needed until they are written."""
        folder = self.path(_SCRATCH)
        folder.mkdir(exist_ok=True)
        return folder

    def clear_scratch(self) -> None:
        """Remove that folder."""
        shutil.rmtree(self.path(_SCRATCH), ignore_errors=True)

    def add(self, name: str, model: bytes, folder: Path | None) -> tuple[str, int]:
        """Write a model with its weights, which lie in files of `folder`, inside. Returns its
        SHA-256 and its bytes."""
        digest, size = hashlib.sha256(), 0
        with self.path(name).open("wb") as handle:
            for piece in (
                [model] if folder is None else _whole(ModelProto.FromString(model), folder)
            ):
                digest.update(piece)
                size += len(piece)
                handle.write(piece)
        self._names[name] = None
        return digest.hexdigest(), size


def _whole(model: ModelProto, folder: Path) -> Iterator[bytes]:
    """The bytes of a model with all weights inside, its fields in the order of their numbers."""
    graph = model.graph
    weights = [_Weight.of(tensor, folder) for tensor in graph.initializer]
    before, after = GraphProto(), GraphProto()
    before.node.extend(graph.node)
    before.name = graph.name
    after.CopyFrom(graph)
    for field in ("node", "name", "initializer"):
        after.ClearField(field)
    head, tail = before.SerializeToString(), after.SerializeToString()
    outer, rest = ModelProto(), ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    for field, _ in model.ListFields():
        if field.number < _MODEL_GRAPH:
            setattr(outer, field.name, getattr(model, field.name))
            rest.ClearField(field.name)
    size = len(head) + len(tail) + sum(weight.size for weight in weights)
    yield outer.SerializeToString()
    yield write_varint(_MODEL_GRAPH << 3 | BYTES) + write_varint(size) + head
    for weight in weights:
        yield from weight.pieces()
    yield tail + rest.SerializeToString()


@dataclass(frozen=True)
class _Weight:
    """An initializer's field: what comes before its bytes, the place of these, what comes after."""

    before: bytes
    file: Path | None
    offset: int
    length: int
    after: bytes

    @classmethod
    def of(cls, tensor: TensorProto, folder: Path) -> _Weight:
        if tensor.data_location != TensorProto.EXTERNAL:
            return cls(bytes_field(_GRAPH_INITIALIZER, tensor.SerializeToString()), None, 0, 0, b"")
        name, offset, length = external_place(tensor)
        bare, behind = TensorProto(), TensorProto()
        bare.CopyFrom(tensor)
        for field in ("external_data", "data_location", "doc_string"):
            bare.ClearField(field)
        if tensor.doc_string:
            behind.doc_string = tensor.doc_string
        first = bare.SerializeToString()
        first += write_varint(_TENSOR_RAW << 3 | BYTES) + write_varint(length)
        last = behind.SerializeToString()
        begin = write_varint(_GRAPH_INITIALIZER << 3 | BYTES)
        begin += write_varint(len(first) + length + len(last))
        return cls(begin + first, folder / name, offset, length, last)

    @property
    def size(self) -> int:
        return len(self.before) + self.length + len(self.after)

    def pieces(self) -> Iterator[bytes]:
        yield self.before
        if self.file is not None:
            with self.file.open("rb") as handle:
                handle.seek(self.offset)
                left = self.length
                while left:
                    piece = handle.read(min(_CHUNK, left))
                    if not piece:
                        raise ModelError(f"the weights in {self.file} are cut short")
                    left -= len(piece)
                    yield piece
        yield self.after
