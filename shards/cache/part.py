"""The manifest's part `cache`: within which bounds a node keeps answers of the version."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shards.errors import ManifestError
from shards.parts import ManifestPart

if TYPE_CHECKING:
    from shards.schema import Shard

MOST_BYTES = 1 << 40
LONGEST = 30 * 86400.0  # seconds
SIZES = {"KB": 1e3, "MB": 1e6, "GB": 1e9}


def in_units(text: str, units: Mapping[str, float]) -> float | None:
    """The number of `64MB`; None for a text that is none."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([a-zA-Z]{1,3})", text)
    return None if found is None or found[2] not in units else float(found[1]) * units[found[2]]


@dataclass(frozen=True, slots=True)
class CacheBounds:
    """bytes: of all answers that one node keeps of a version. age_s: seconds after which an answer
    is none any more."""

    bytes: int
    age_s: float

    @classmethod
    def of(cls, raw: object) -> CacheBounds:
        """Of `{"bytes": …, "age_s": …}`; bytes may be a text, as "8MB". Raises ManifestError."""
        if not isinstance(raw, dict) or set(raw) != {"bytes", "age_s"}:
            raise ManifestError(f"a cache has `bytes` and `age_s`, not {raw!r:.80}")
        size, age = raw["bytes"], raw["age_s"]
        if isinstance(size, str) and (told := in_units(size, SIZES)) is not None:
            size = int(told)
        if type(size) is not int or not 0 < size <= MOST_BYTES:
            raise ManifestError(f"a cache's bytes are 1 to {MOST_BYTES}, not {size!r:.40}")
        if type(age) not in (int, float) or not 0 < age <= LONGEST:
            raise ManifestError(f"a cache's age is above 0 s, {LONGEST:g} s at most: {age!r:.40}")
        return cls(size, float(age))

    def to_doc(self) -> dict[str, Any]:
        """What `of` reads."""
        return {"bytes": self.bytes, "age_s": self.age_s}


class CachePart(ManifestPart):
    """See the module."""

    field = "cache"

    def check(self, raw: object, shards: Sequence[Shard]) -> None:
        try:
            CacheBounds.of(raw)
        except ManifestError as error:
            raise ManifestError(f"manifest field 'cache': {error}") from None


PART = CachePart()
