"""What is asked about a model's head, and how an answer is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shards.cameras.decode import DECODERS
from shards.cameras.seen import SeenGraph
from shards.errors import TaskError
from shards.specs import TensorSpec

COCO = 80  # classes of the data set that most detectors are trained on


@dataclass(frozen=True)
class TaskHead:
    """decode, outputs: see `shards.cameras.task.Postprocess`. why: a sentence for people.
    names_background: whether the owner's first label is the background's. more, each: see
    `Postprocess`."""

    decode: str
    outputs: tuple[str, ...]
    why: str
    names_background: bool = False
    more: int = 0
    each: int = 0


@dataclass(frozen=True)
class AskedTask:
    """What was asked, for errors. labels: how many the owner or the file names."""

    kind: str
    decode: str
    outputs: Sequence[TensorSpec]
    labels: int
    seen: SeenGraph

    @property
    def shown(self) -> str:
        return ", ".join(f"{spec.name} {spec}" for spec in self.outputs)

    def unsure(self, why: str, counts: Mapping[str, int] | None = None) -> TaskError:
        """counts: the classes that the outputs have, by how they are read."""
        if self.labels and counts and self.labels not in counts.values():
            read = ", ".join(f"{count} as {name}" for name, count in counts.items())
            why = f"{why}; {self.named} fit no way of reading it: {read}"
        choices = ", ".join(DECODERS[self.kind])
        return TaskError(
            f"the shapes do not tell how {self.kind} reads {self.shown}: {why}. "
            f"--decode says it: {choices}"
        )

    def unread(self, what: str) -> TaskError:
        """For a head that is known by name, and that no choice would read."""
        return TaskError(f"{self.shown}: {what} not read by --task {self.kind} or any other")

    @property
    def named(self) -> str:
        return f"{self.labels} label{'' if self.labels == 1 else 's'}"

    def check(self, classes: int, spec: TensorSpec, decode: str) -> None:
        """Raises TaskError where the labels are not as many as the classes."""
        if self.labels and classes >= 0 and self.labels != classes:
            raise TaskError(
                f"{self.named} for {classes} classes: {spec.name} {spec} has {classes} of them as "
                f"{decode}. --labels names each; where the file's own names do not fit, the model "
                f"may be none for --task {self.kind}"
            )
