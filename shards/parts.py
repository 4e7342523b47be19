"""What features add to the manifest and to splitting: parts, kinds of models, additions.

A part is a field of the manifest that one feature reads; the core keeps it as it is. The object
`PART` of `shards/<name>/part.py` tells of it. Importing that module imports no library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from shards.schema import Manifest, Shard

NAMES = ("language", "cameras", "compose", "cache", "guard")


class ManifestPart:
    """A field of the manifest. Its list `files`, if it has one, names artifacts that belong to the
    version: objects with `file`, `sha256` and `bytes`."""

    field: str

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        """Raise ManifestError for a value that the feature cannot read."""
        raise NotImplementedError


class ModelHints(Protocol):
    """What lies beside a model's file, and tells what its graph does not."""

    @property
    def misfit(self) -> str:
        """Why they do not go with a model of tensors alone; "" where they do."""
        ...


class ModelKind(ManifestPart):
    """A part whose models are split, loaded and asked in a way of their own. about: such a model,
    with its article. asked: how its stages are asked instead of by tensors."""

    about: str
    asked: str

    def stage_ends(self, manifest: Manifest) -> list[int]:
        """Where its stages end, in what the options `ends` of a split count."""
        raise NotImplementedError

    def has(self, model: Any) -> bool:
        """Whether a model (`onnx.ModelProto`) is of this kind."""
        raise NotImplementedError

    def split(
        self,
        model: Any,
        digest: str,
        *,
        name: str,
        version: str,
        created: str,
        options: Any,
        hints: ModelHints | None,
    ) -> tuple[Manifest, Mapping[str, bytes], tuple[str, ...]]:
        """The manifest, the files and notes. options: `shards.split.plan.CutOptions`. Raises
        ModelError, SplitError."""
        raise NotImplementedError


@dataclass(frozen=True)
class ModelWithAddition:
    """A model (`onnx.ModelProto`) and its lighter one with an addition inside, the parts of the
    manifest that tell it, and notes for the owner."""

    model: Any
    lighter: bytes | None
    parts: Mapping[str, Mapping[str, Any]]
    notes: tuple[str, ...] = ()


class Addition(Protocol):
    """What an owner adds to a model of tensors before it is cut."""

    def add(self, model: Any, lighter: bytes | None) -> ModelWithAddition:
        """model: in the normal form of `shards.graph.source`; it is changed. Raises ShardsError."""
        ...


@cache
def parts() -> tuple[ManifestPart, ...]:
    """Those of the features that are there."""
    return tuple(import_module(f"shards.{name}.part").PART for name in NAMES if _is_there(name))


def kinds() -> tuple[ModelKind, ...]:
    """The kinds of models beside those of tensors alone."""
    return tuple(part for part in parts() if isinstance(part, ModelKind))


def _is_there(name: str) -> bool:
    try:
        return find_spec(f"shards.{name}.part") is not None
    except ModuleNotFoundError:  # nor is its room
        return False
