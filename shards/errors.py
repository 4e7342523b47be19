"""What can go wrong with a model, and nothing else.

ShardsError
├── ModelError            a graph that cannot be used, and why
│   └── SplitError        a graph that cannot be split as asked
├── ManifestError         a manifest that cannot be read
├── ArtifactError         a file that is missing or not the one the manifest names
├── InputError            tensors that do not fit what a run needs
└── RunError              the runtime failed on valid tensors
    └── RunTerminated     the run was cancelled or ran out of time
"""

from __future__ import annotations


class ShardsError(Exception):
    """Base of every error that this package raises on purpose."""


class ModelError(ShardsError):
    """The model is invalid or uses something unsupported; the message says what and where."""


class SplitError(ModelError):
    """The model is fine, but cannot be split as asked.

    `possible` is the largest number of stages the graph allows, where that is known.
    """

    def __init__(self, message: str, *, possible: int | None = None) -> None:
        super().__init__(message)
        self.possible = possible


class ManifestError(ShardsError):
    """The manifest is malformed, inconsistent, or of an unknown format."""


class ArtifactError(ShardsError):
    """An artifact is missing, or its bytes are not the ones the manifest names."""


class InputError(ShardsError):
    """A tensor does not fit: `name`, what was `expected`, what was `got`."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(f"tensor {name!r}: expected {expected}, got {got}")
        self.name = name
        self.expected = expected
        self.got = got


class RunError(ShardsError):
    """The runtime failed although the inputs fit."""


class RunTerminated(RunError):
    """The run was stopped from outside: its request was cancelled or its budget is spent."""
