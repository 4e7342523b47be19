"""What a manifest tells of its guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shards.errors import ManifestError
from shards.guard.reference import MOST_VIEWS, bytes_of
from shards.guard.summary import TensorView
from shards.json_fields import get
from shards.manifest import sha256
from shards.schema import part_file


@dataclass(frozen=True, slots=True)
class ToldGuard:
    """false_alarms: the share of usual rows that are found unfamiliar, as calibrated. samples: of
    the calibration. refuse: requests with unfamiliar rows are refused. file: the artifact."""

    views: tuple[TensorView, ...]
    false_alarms: float
    samples: int
    refuse: bool
    file: str = ""

    @classmethod
    def of(cls, raw: object) -> ToldGuard:
        """Raises ManifestError."""
        if not isinstance(raw, Mapping):
            raise ManifestError(f"manifest field 'guard' must be an object, is {raw!r:.80}")
        views = get(raw, "views", list)
        if not 0 < len(views) <= MOST_VIEWS:
            raise ManifestError(f"a guard has 1 to {MOST_VIEWS} views, not {len(views)}")
        rate, samples = get(raw, "false_alarms", (int, float)), get(raw, "samples", int)
        if not 0 < rate < 1 or samples < 0:
            raise ManifestError("a guard's false alarms are a share between 0 and 1")
        looked = tuple(map(TensorView.from_dict, views))
        files = get(raw, "files", list)
        if len(files) != 1 or part_file(files[0]).bytes != bytes_of(looked):
            raise ManifestError("a guard has one file, of the size that its views say")
        refuse, file = get(raw, "refuse", bool), part_file(files[0]).file
        return cls(looked, float(rate), samples, refuse, file)

    def to_dict(self, data: bytes) -> dict[str, Any]:
        """The manifest's field. data: the artifact, whose name is by its content."""
        digest = sha256(data)
        return {
            "views": [view.to_dict() for view in self.views],
            "false_alarms": self.false_alarms,
            "samples": self.samples,
            "refuse": self.refuse,
            "files": [{"file": f"guard-{digest[:12]}.f64", "sha256": digest, "bytes": len(data)}],
        }
