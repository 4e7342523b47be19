"""A run of messages against one parser, in this process, and a judgement of each.

A finding is anything but success or a typed error of `swarm.errors` or `shards.errors`: another
exception, more than a second of computing, or more memory than the message may take. A crash of the
process, and a wait outside Python, are found by `campaign`, which watches from another process.
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from random import Random
from types import FrameType
from typing import Any

from bench.hostile.mutations import mutated
from bench.hostile.target import TYPED, Case, Target

LONGEST = 1.0  # seconds of CPU time for one message
MEASURED = 40  # of so many messages, one is measured by tracemalloc, which makes it slow
RSS_GROWTH = 16 << 20  # bytes; a message behind which the process has grown so much is measured
LARGEST_KEPT = 4096  # bytes of a finding's message that are told; its seed makes it anew


class TooLong(BaseException):
    """A message took too long. Not an `Exception`: a parser must not swallow it."""


@dataclass(slots=True)
class Finding:
    """What is wrong with a parser. kind: `error`, `slow`, `memory`, `crash` or `hang`. place: file
    and line of an error. index: of the message, which `message_at` makes anew. seen: how often."""

    target: str
    kind: str
    text: str
    place: str
    index: int
    message: bytes
    seen: int = 1

    def as_doc(self) -> dict[str, Any]:
        kept = self.message[:LARGEST_KEPT]
        return asdict(self) | {"message": kept.hex(), "bytes": len(self.message)}


@dataclass(slots=True)
class SliceResult:
    """Of one run. refused: by a typed error. measured: by tracemalloc. most_memory: the greatest
    share of what a message may take."""

    target: str
    messages: int = 0
    taken: int = 0
    refused: int = 0
    measured: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    most_memory: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Keep one finding of each kind and place: the shortest message shows it best."""
        for known in self.findings:
            if (known.kind, known.place) == (finding.kind, finding.place):
                known.seen += finding.seen
                if len(finding.message) < len(known.message):
                    known.index, known.message = finding.index, finding.message
                    known.text = finding.text
                return
        self.findings.append(finding)


def message_at(target: Target, case: Case, seed: int, index: int) -> bytes:
    """The message with that number, the same in each process."""
    rng = Random(zlib.crc32(target.name.encode()) << 96 | (seed & (1 << 32) - 1) << 64 | index)
    if case.wrap is None:
        return mutated(rng, case.seeds, target.form)
    if rng.random() < 0.75:
        return case.wrap(mutated(rng, case.seeds, target.form))
    return mutated(rng, [case.wrap(inner) for inner in case.seeds], "bytes")


def run_slice(
    target: Target,
    seed: int,
    first: int,
    count: int,
    *,
    seconds: float = float("inf"),
    on_index: Callable[[int], None] = lambda index: None,
) -> SliceResult:
    """Messages `first` to `first + count - 1`, one at least, or as many as these seconds allow.

    on_index(index) is told each message before it is parsed. Runs in the main thread, since it
    takes the signal SIGVTALRM.
    """
    result = SliceResult(target.name)
    with ExitStack() as stack:
        case = _opened(target, stack)
        began = time.monotonic()
        for index in range(first, first + count):
            if result.messages and time.monotonic() - began >= seconds:
                break
            on_index(index)
            message = message_at(target, case, seed, index)
            judge(target.name, case, message, index, result, index % MEASURED == 0)
        result.seconds = time.monotonic() - began
    return result


def replay(target: Target, message: bytes) -> SliceResult:
    """One message, measured: for kept messages that were findings once."""
    result = SliceResult(target.name)
    with ExitStack() as stack:
        case = _opened(target, stack)
        judge(target.name, case, message, 0, result, True)
    return result


def _opened(target: Target, stack: ExitStack) -> Case:
    """The parser, behind its first messages: modules and tables that they load are not theirs."""
    case = target.open(stack)
    for inner in case.seeds:
        with suppress(*TYPED):
            case.parse(inner if case.wrap is None else case.wrap(inner))
    stack.enter_context(_too_long())
    return case


def judge(
    name: str, case: Case, message: bytes, index: int, result: SliceResult, measure: bool
) -> None:
    """Parse one message and add the judgement to the result."""
    result.messages += 1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if measure:
        _measured(name, case, message, index, result)
    else:
        _parsed(name, case, message, index, result)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
        if grown > RSS_GROWTH:
            _measured(name, case, message, index, SliceResult(name), into=result)


def _measured(
    name: str,
    case: Case,
    message: bytes,
    index: int,
    result: SliceResult,
    into: SliceResult | None = None,
) -> None:
    """into: takes the finding of memory, and not the other counts."""
    told = result if into is None else into
    told.measured += 1
    tracemalloc.start()
    try:
        _parsed(name, case, message, index, result)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    allowed = 4 * case.declared(message) + case.floor
    told.most_memory = max(told.most_memory, peak / allowed)
    if peak > allowed:
        text = f"{peak} bytes for a message of {len(message)}; {allowed} are allowed"
        told.add(Finding(name, "memory", text, "", index, message))


def _parsed(name: str, case: Case, message: bytes, index: int, result: SliceResult) -> None:
    began = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * LONGEST)
    try:
        case.parse(message)
        result.taken += 1
    except TYPED:
        result.refused += 1
    except TooLong:
        result.add(Finding(name, "slow", f"more than {2 * LONGEST} s", "", index, message))
        return
    except (Exception, MemoryError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}"
        text = f"{type(error).__name__}: {error!s:.200}"
        result.add(Finding(name, "error", text, place, index, message))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    took = time.process_time() - began
    result.slowest = max(result.slowest, took)
    if took > LONGEST:
        result.add(Finding(name, "slow", f"{took:.1f} s", "", index, message))


@contextmanager
def _too_long() -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before)
