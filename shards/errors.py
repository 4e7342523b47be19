"""The errors of this package.

ShardsError
├── ModelError            a model that cannot be used
│   ├── SplitError        a model that cannot be split as asked
│   ├── TaskError         a model whose task cannot be told from its shapes
│   ├── DeviceError       a device that is not there, or not as asked
│   └── DoesNotFit        a model that needs more memory than there is
├── ManifestError         a manifest that cannot be read
├── ArtifactError         a missing file, or a file with another hash than in the manifest
├── InputError            tensors that do not fit a stage's inputs, or a task
├── PictureError          a file that is no picture, or too large a one
├── DeltaError            a change of weights that does not fit them
└── RunError              the runtime failed on valid tensors
    ├── RunTooLong        a run that no request bounds took longer than it may
    ├── NotOnDevice       a run that this device cannot take, and another one can
    └── RunTerminated     the run was cancelled or ran out of time
"""

from __future__ import annotations

from enum import StrEnum


class ShardsError(Exception):
    """Base of all errors of this package."""


class ModelError(ShardsError):
    """The model is invalid or unsupported; the message names the place and the reason."""


class SplitError(ModelError):
    """The model is valid, but cannot be split as asked.

    `possible` is the largest number of stages that the graph allows, None where it is unknown.
    """

    def __init__(self, message: str, *, possible: int | None = None) -> None:
        super().__init__(message)
        self.possible = possible


class PlanError(ShardsError):
    """No plan can be made as asked; the message says which bound is in the way."""


class TaskError(ModelError):
    """What the model is for cannot be told from its shapes; the message names the choices."""


class DeviceError(ModelError):
    """A device, a core or an option of a device that this machine does not have."""


class DoesNotFit(ModelError):
    """Loading the model takes more memory than this machine has free; it was not begun."""


class ManifestError(ShardsError):
    """The manifest is malformed, inconsistent, or of an unknown format."""


class ArtifactError(ShardsError):
    """An artifact (a file of a model version) is missing, or has another hash than it should."""


class InputError(ShardsError):
    """The tensor `name` does not fit: `expected` and `got` describe datatype and shape."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"tensor {name!r}: expected {expected}, got {got}")
        self.name = name
        self.expected = expected
        self.got = got


class PictureError(ShardsError):
    """The bytes are no picture that can be read, or it has too many pixels."""


class DeltaFault(StrEnum):
    """Why a change of weights was refused."""

    BASE = "another base"
    TENSOR = "unknown tensor"
    SHAPE = "wrong shape"
    DATATYPE = "wrong datatype"
    OUT_OF_RANGE = "index out of range"
    UNSORTED = "unsorted indices"
    DUPLICATE = "duplicate index"
    NOT_FINITE = "not finite"
    RESULT = "results not finite"


class DeltaError(ShardsError):
    """A change of weights does not fit them; the weights stay as they were.

    `fault` says why. `tensor` is the name of the tensor, "" where the whole change is refused.
    """

    def __init__(self, fault: DeltaFault, message: str, tensor: str = "") -> None:
        super().__init__(message)
        self.fault = fault
        self.tensor = tensor


class RunError(ShardsError):
    """The runtime failed although the inputs fit, or it is closed."""


class RunTerminated(RunError):
    """The run was stopped from outside: its request was cancelled or its budget is spent."""


class RunTooLong(RunError):
    """A run of a model on synthetic input, an example or samples was ended after its limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"a run of the model was ended after {seconds:g} s: on these values it may never end; "
            "give typical values (--example FILE.npz), or more time (swarm --run-limit 10m ...)"
        )
        self.seconds = seconds


class NotOnDevice(RunError):
    """A run that the device was not prepared for, such as more rows than an engine's profile."""
