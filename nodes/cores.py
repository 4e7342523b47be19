"""The cores of this machine on which a node computes."""

from __future__ import annotations

import os
from collections.abc import Sequence

from swarm.errors import InvalidArgument

MOST = 4096  # a larger number is a mistake


def stay_on(text: str) -> None:
    """This process, and all threads that it makes later, stay on these cores; "" for any.

    Raises InvalidArgument for a core that is not there.
    """
    if not text:
        return
    cores = parse_cores(text)
    check_cores(cores, sorted(os.sched_getaffinity(0)))
    os.sched_setaffinity(0, cores)


def parse_cores(text: str) -> tuple[int, ...]:
    """`2-3` or `0,2,4-5` as numbers of cores, ascending. Raises InvalidArgument."""
    cores: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            raise InvalidArgument(f"cores {part!r}: write numbers and ranges, as 0,2-3") from None
        if not 0 <= low <= high < MOST:
            raise InvalidArgument(f"cores {part!r}: a range goes up, from 0 on")
        cores.update(range(low, high + 1))
    return tuple(sorted(cores))


def check_cores(cores: Sequence[int], there: Sequence[int]) -> None:
    """Raises InvalidArgument for a core that this process may not use."""
    absent = sorted(set(cores) - set(there))
    if absent:
        raise InvalidArgument(
            f"core {absent[0]} is not there for this process: it may use "
            f"{', '.join(map(str, sorted(there)))}"
        )
