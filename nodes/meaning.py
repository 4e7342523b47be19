"""What a model's tensors mean to people, as a feature reads it of the model's version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from swarm.mesh import Mesh
    from swarm.wire.messages import Result

Tensors = Mapping[str, np.ndarray]


class AnswerMeaning(Protocol):
    """What one answer says."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        ...

    def lines(self) -> Sequence[str]:
        """For people."""
        ...

    def decides_as(self, other: AnswerMeaning) -> bool:
        """Whether both say the same, though their numbers differ a little."""
        ...


class Meaning(Protocol):
    """Of the tensors of one model version. All raise `ShardsError` for what does not fit."""

    @property
    def kind(self) -> str:
        """What the model is for, in a word."""
        ...

    def inputs_of(self, image: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs of a picture: uint8 [height, width, 3], RGB. Takes milliseconds."""
        ...

    def decoded(self, tensors: Tensors) -> dict[str, np.ndarray]:
        """The inputs, of those where one came as an encoded picture. Takes milliseconds, and as
        much memory as the picture has pixels."""
        ...

    def as_file_takes(self, inputs: Tensors) -> dict[str, np.ndarray]:
        """What the file that the version was made of takes instead of these inputs."""
        ...

    def read(self, outputs: Tensors, shape: Sequence[int] = ()) -> AnswerMeaning:
        """What outputs say. shape: of the picture's array; without it of the model's own."""
        ...


class OpenedFile(Protocol):
    """A file that a model is asked about. inputs: the model's."""

    @property
    def inputs(self) -> dict[str, np.ndarray]: ...

    async def read(self, client: Mesh, answer: Result) -> AnswerMeaning:
        """What an answer says, as the version that answered means it. Raises `ShardsError`,
        `NotFound`, `Unavailable`."""
        ...


# Opens a file for a model of this name. Raises `ShardsError`, `SwarmError`.
Opens = Callable[["Mesh", str], Awaitable[OpenedFile]]
