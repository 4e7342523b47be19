"""A run of a composition: each part when somebody needs it, once, and all that can side by side.

A part that only a branch needs which is not taken is not run. The whole ends with the first failure
of a part that is needed; what still runs then, or is needed no more, is cancelled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from shards.compose.check import ModelSignature
from shards.compose.composition import (
    MOST_ROWS,
    AskPart,
    ChoosePart,
    Composition,
    FirstPart,
    NearestPart,
    OperatePart,
    Part,
    Ref,
    needed,
    parts_asked,
)
from shards.compose.errors import CompositionError
from shards.compose.nearest import NearestIndex
from shards.compose.operators import OF_THOSE_THERE, OPERATORS
from shards.errors import ShardsError
from shards.specs import TensorSpec

ROWS_AT_ONCE = 32  # of a `map`, in one request of a batchable model
AT_ONCE = 256 << 10  # bytes that an operator makes while others wait for it
REQUESTS_AT_ONCE = 8  # of a `map`
SEARCHED_AT_ONCE = 2  # rows that are searched on the event loop: each takes some tenths of a ms
MOST_BYTES = 64 << 20  # of all that the parts of a run make

Tensors = dict[str, np.ndarray]
AskModel = Callable[[AskPart, Tensors], Awaitable[Tensors]]


class NotAnswered(ShardsError):
    """A model gave no answer; the cause says why."""


class WrongAnswer(NotAnswered):
    """A model answered otherwise than its version says."""


@dataclass(slots=True)
class PartRun:
    """What became of a part. began, ended: `time.monotonic()`; ended: 0.0 where it was cancelled.
    rows: that a `map` was asked for. left_out: it was optional, or needs one that was left out.
    taken: the part that one of `choose` or `first` has become. failed: why, where
    the run ended with it."""

    began: float
    ended: float = 0.0
    rows: int = 0
    left_out: str = ""
    taken: str = ""
    failed: str = ""


@dataclass(slots=True)
class Ran:
    """outputs: of the composition. parts: those that were begun, in that order. made: what those
    made that the outputs come from, None where one was left out."""

    outputs: Tensors
    parts: dict[str, PartRun] = field(default_factory=dict)
    made: dict[str, Tensors | None] = field(default_factory=dict)


async def run(
    composition: Composition,
    models: Mapping[str, ModelSignature],
    inputs: Mapping[str, np.ndarray],
    ask: AskModel,
    parts: dict[str, PartRun] | None = None,
) -> Ran:
    """ask(part, tensors): what the part's model answers; raises NotAnswered. models: as for
    `shards.compose.check`, which the composition has passed. parts: an empty dict, which becomes
    `Ran.parts`, also of a run that fails.

    Raises NotAnswered, of a part that is needed, and CompositionError for tensors that a part
    cannot take: more rows than it may be asked for, shapes that turn out not to fit.
    """
    under_way = _Run(composition, models, dict(inputs), ask, {} if parts is None else parts)
    try:
        outputs = await under_way.outputs()
    finally:
        await under_way.end()
    return Ran(outputs, under_way.parts, under_way.made())


class _Run:
    def __init__(
        self,
        composition: Composition,
        models: Mapping[str, ModelSignature],
        inputs: Tensors,
        ask: AskModel,
        parts: dict[str, PartRun],
    ) -> None:
        self._composition = composition
        self._models = models
        self._inputs = inputs
        self._ask_model = ask
        self._tasks: dict[str, asyncio.Task[Tensors | None]] = {}
        self.parts = parts
        self._failures: list[Exception] = []  # each of the part that it comes from
        self._bytes = 0  # of what the parts have made

    async def outputs(self) -> Tensors:
        """Raises as `run`."""
        wanted = self._composition.outputs
        made = await self._read(wanted)
        if made is None:  # the check allows no such output
            raise CompositionError("", "an output was left out")
        return made

    def made(self) -> dict[str, Tensors | None]:
        """Of the parts that the outputs come from. Of those behind `first` only one is."""
        made: dict[str, Tensors | None] = {}
        waiting = [ref.part for ref in self._composition.outputs.values()]
        while waiting:
            name = waiting.pop()
            if not name or name in made:
                continue
            made[name] = self._tasks[name].result()
            waiting += [ref.part for ref in self._composition.parts[name].tensors()]
            waiting.append(self.parts[name].taken)
        return made

    async def end(self) -> None:
        """Cancel what runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _task(self, name: str) -> asyncio.Task[Tensors | None]:
        if name not in self._tasks:
            part = self._composition.parts[name]
            self._tasks[name] = asyncio.create_task(self._run(part), name=f"part {name}")
        return self._tasks[name]

    async def _made(self, name: str) -> Tensors | None:
        """What a part makes, None where it is left out. Others may wait for it, too."""
        task = self._task(name)
        await asyncio.wait([task])
        return task.result()

    async def _read(self, refs: Mapping[str, Ref]) -> Tensors | None:
        """These tensors by their keys, None where one is left out."""
        made = await self._read_some(refs)
        return made if len(made) == len(refs) else None

    async def _read_some(self, refs: Mapping[str, Ref]) -> Tensors:
        names = {ref.part for ref in refs.values() if ref.part}
        tasks = [self._task(name) for name in names]
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        found: Tensors = {}
        for key, ref in refs.items():
            of = self._inputs if not ref.part else self._tasks[ref.part].result()
            if of is not None:
                found[key] = of[ref.tensor]
        return found

    async def _run(self, part: Part) -> Tensors | None:
        told = self.parts[part.name] = PartRun(time.monotonic())
        try:
            return await self._ran(part, told)
        except Exception as error:
            if error not in self._failures:  # else it comes from a part that this one reads
                self._failures.append(error)
                told.failed, told.ended = str(error), time.monotonic()
            raise

    async def _ran(self, part: Part, told: PartRun) -> Tensors | None:
        match part:
            case AskPart():
                made = await self._asked(part, told)
            case OperatePart():
                made = await self._operated(part, told)
            case ChoosePart():
                made = await self._chosen(part, told)
            case FirstPart():
                made = await self._first(part, told)
            case NearestPart():
                made = await self._searched(part, told)
        told.ended = time.monotonic()
        if made is not None and not parts_asked(part):
            self._bytes += sum(array.nbytes for array in made.values())
            if self._bytes > MOST_BYTES:
                raise CompositionError(part.name, _too_many(self._bytes))
        if made is None and not told.left_out:
            told.left_out = "a part that it reads was left out"
        return made

    async def _asked(self, part: AskPart, told: PartRun) -> Tensors | None:
        tensors = await self._read(part.inputs)
        if tensors is None:
            return None
        told.began = time.monotonic()  # before, it has waited for others
        try:
            if part.each_row:
                return await self._each_row(part, tensors, told)
            model = self._models[part.name]
            if model.batchable and not any(len(array) for array in tensors.values()):
                return _no_rows(model)  # no model is asked for nothing
            return await self._ask_once(part, tensors)
        except NotAnswered as error:
            if not part.optional:
                raise
            told.left_out = str(error)
            return None

    async def _ask_once(self, part: AskPart, tensors: Tensors, rows: int = -1) -> Tensors:
        """rows: that the answer has, -1 for any number."""
        answer = await self._ask_model(part, tensors)
        specs = self._models[part.name].outputs
        for spec in specs:
            if (array := answer.get(spec.name)) is None or not _admits(spec, array, rows):
                got = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
                behind = f" with {rows} rows" if rows >= 0 else ""
                raise WrongAnswer(
                    f"part {part.name!r}: {part.model} gave {got} for {spec.name!r}, not "
                    f"{spec}{behind}"
                )
        return {spec.name: answer[spec.name] for spec in specs}

    async def _each_row(self, part: AskPart, tensors: Tensors, told: PartRun) -> Tensors:
        counts = {len(array) for array in tensors.values()}
        if len(counts) != 1:
            raise CompositionError(part.name, f"its inputs have {sorted(counts)} rows")
        (rows,) = counts
        told.rows = rows
        if rows > part.most:
            raise CompositionError(part.name, f"{rows} rows are asked for, of {part.most} at most")
        model = self._models[part.name]
        at_once = ROWS_AT_ONCE if model.batchable else 1
        turns = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def ask(begin: int) -> Tensors:
            async with turns:
                some = {name: array[begin : begin + at_once] for name, array in tensors.items()}
                return await self._ask_once(part, some, min(at_once, rows - begin))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask(begin)) for begin in range(0, rows, at_once)]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        answers = [task.result() for task in tasks]
        if not answers:
            return _no_rows(model)
        try:
            return {name: np.concatenate([a[name] for a in answers]) for name in answers[0]}
        except ValueError:
            text = f"{part.model} answers rows with tensors of other shapes, which cannot be joined"
            raise CompositionError(part.name, text) from None

    async def _operated(self, part: OperatePart, told: PartRun) -> Tensors | None:
        tensors = await self._read_some(part.inputs)
        told.began = time.monotonic()  # before, it has waited for others
        lacking = len(tensors) < len(part.inputs)
        if lacking and (part.operator not in OF_THOSE_THERE or not tensors):
            return None
        operator = OPERATORS[part.operator]
        try:
            if self._bytes + (size := operator.bytes(tensors, part.settings)) > MOST_BYTES:
                raise ValueError(_too_many(self._bytes + size))
            if size > AT_ONCE:
                return await asyncio.to_thread(operator.run, tensors, part.settings)
            return operator.run(tensors, part.settings)
        except (ValueError, IndexError) as error:  # free dimensions that turn out not to fit
            raise CompositionError(part.name, str(error)) from None

    async def _searched(self, part: NearestPart, told: PartRun) -> Tensors | None:
        tensors = await self._read({"of": part.of})
        if tensors is None:
            return None
        told.began = time.monotonic()  # before, it has waited for others
        index, vectors = self._composition.indexes.get(part.index), tensors["of"]
        if not isinstance(index, NearestIndex):
            raise CompositionError(part.name, f"index {part.index!r} is not open here")
        told.rows, size = len(vectors), index.about.dimensions
        if vectors.ndim != 2 or vectors.shape[1] != size or told.rows > MOST_ROWS:
            text = f"vectors are [0 to {MOST_ROWS}, {size}]"
            raise CompositionError(part.name, f"{text}, not {list(vectors.shape)}")
        if told.rows <= SEARCHED_AT_ONCE:
            return index.search(vectors, part.k, part.most_distance)
        return await asyncio.to_thread(index.search, vectors, part.k, part.most_distance)

    async def _chosen(self, part: ChoosePart, told: PartRun) -> Tensors | None:
        tensors = await self._read({"by": part.by})
        if tensors is None:
            return None
        try:
            holds = part.condition.holds(tensors["by"])
        except (ValueError, IndexError) as error:
            raise CompositionError(part.name, f"{part.by}: {error}") from None
        taken, other = (part.then, part.otherwise) if holds else (part.otherwise, part.then)
        for told.taken in (taken, other):
            if (made := await self._made(told.taken)) is not None:
                return made
        return None

    async def _first(self, part: FirstPart, told: PartRun) -> Tensors | None:
        pending = {self._task(name) for name in part.of}
        failed: BaseException | None = None
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # Of several at once the one that stands first is taken.
            for name in part.of:
                task = self._tasks[name]
                if task not in done:
                    continue
                if (error := task.exception()) is not None:
                    failed = error
                elif (made := task.result()) is not None:
                    told.taken = name
                    self._cancel_alone(part, pending)
                    return made
        if failed is not None:
            raise failed
        return None

    def _cancel_alone(self, part: FirstPart, pending: set[asyncio.Task[Tensors | None]]) -> None:
        """Cancel those that nobody else waits for."""
        others = [p for p in self._composition.parts.values() if p is not part]
        read = {ref.part for ref in self._composition.outputs.values()}
        for other in others:
            read.update(needed(other))
        for name in part.of:
            if name not in read and self._tasks[name] in pending:
                self._tasks[name].cancel()


def _no_rows(model: ModelSignature) -> Tensors:
    """What a model whose rows are independent answers to none."""
    return {
        spec.name: np.zeros((0, *(max(0, size) for size in spec.shape[1:])), spec.dtype)
        for spec in model.outputs
    }


def _too_many(size: int) -> str:
    return f"the parts make {size >> 20} MB, of {MOST_BYTES >> 20} at most for one request"


def _admits(spec: TensorSpec, array: np.ndarray, rows: int) -> bool:
    """Whether an array is as the spec says. rows: as of `_ask_once`."""
    if array.dtype != spec.dtype:
        return False
    if rows >= 0 and (not array.ndim or len(array) != rows):
        return False
    if spec.any_rank:
        return True
    return len(spec.shape) == array.ndim and all(
        wanted in (-1, size) or (rows >= 0 and not axis)
        for axis, (wanted, size) in enumerate(zip(spec.shape, array.shape, strict=True))
    )
