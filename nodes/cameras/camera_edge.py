"""An edge with cameras: the newest frame, the model's answer, the result with its age.

    source ─► slot of one ─► turn ─► gate ─► mask ─► prepare ─► mesh ─► read ─► sink
    (thread)                 (fair, few on their way)  │ guard

A frame is taken from its source when the mesh has room for it, and never before: a slow mesh gets
fewer frames, and none that is old.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from nodes.cameras.anatomy import Anatomy, explained
from nodes.cameras.board import Board
from nodes.cameras.crops.cache import CropRule
from nodes.cameras.crops.crops import Crops
from nodes.cameras.eye import Eye, SeenFrame, eye_of
from nodes.cameras.frame import Frame, told
from nodes.cameras.guard.watch import Held, guard_files
from nodes.cameras.mask.door import Cleared, MaskingDoor, Withheld, image_of
from nodes.cameras.mask.loading import MaskModel
from nodes.cameras.picture_task import PictureTask, Tasks, jpeg_of
from nodes.cameras.reviews import Reviews
from nodes.cameras.settings import CameraOptions
from nodes.cameras.sources.opened import open_sources
from nodes.cameras.turns import Turns
from nodes.config import EdgeOptions
from nodes.connection.identity import identity_of
from nodes.edge.edge import EdgeCounters, result_line
from nodes.edge.kept_results import KeptResults
from nodes.life.node import Node
from nodes.placing.ways import jpeg_quality
from nodes.requests.answering import AsPicture, Leaves
from shards.cameras.results import Detections
from shards.cameras.task import Task
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, Status, SwarmError, Unavailable
from swarm.ids import ulid
from swarm.model import ModelInfo
from swarm.wire.messages import Request, Result

if TYPE_CHECKING:
    from nodes.cameras.shows import Shows

log = logging.getLogger("swarm.camera")

THREADS = 2  # for pixels; the models' own threads do the rest
EXPLAIN_EVERY = 1.0  # seconds
MOST_SAID = 32  # different faults
T = TypeVar("T")


class Cameras:
    """What an edge with cameras adds to its node's status."""

    def __init__(self, counters: EdgeCounters) -> None:
        self.eyes: list[Eye] = []
        self._counters = counters

    def status(self) -> dict[str, Any]:
        """The fields `edge` and `cameras`."""
        now = time.monotonic()
        cameras = [eye.status(now) for eye in self.eyes]
        if cameras:
            self._counters.captured = sum(int(each["frames"]) for each in cameras)
            self._counters.dropped = sum(int(each["dropped"]) for each in cameras)
        return {**self._counters.status(), "cameras": cameras}


class CameraEdge:
    """`run(stop)`: the node's life, with its cameras beside it."""

    def __init__(
        self, node: Node, options: EdgeOptions, counters: EdgeCounters, cameras: Cameras
    ) -> None:
        self.node = node
        self.options = options
        self.counters = counters
        self._cameras = cameras
        self._results = KeptResults(node.mesh.link, node.mesh.subjects.results(options.sink))
        self._tasks = Tasks(node.mesh)
        self._turns = Turns(options.in_flight)
        self._quality = jpeg_quality(options.send)
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        self._sent = 0
        self._over = asyncio.Event()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="pixels")
        self._mask = MaskModel(node.mesh, node.config)
        self._reviews = Reviews(node)
        self._said: set[str] = set()
        self._explained = 0.0
        self._shows: Shows | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Ends when every source has ended, when `count` frames were answered or, on `stop`, when
        those on their way are. Raises `SwarmError`, also where no source could be read."""
        sources = open_sources(self.options.source, self.options.on_full, self.options.rate)
        config = self.node.config
        camera = config.of(CameraOptions)
        if camera.guard_file and len(sources) > 1:
            raise InvalidArgument("--guard-file is for one camera: start a node for each")
        files = guard_files(camera.guard_file, identity_of(config), config.trusted)
        self._cameras.eyes = [eye_of(each, camera, files) for each in sources]
        for eye in self._cameras.eyes:
            eye.crops = self._crops(camera)
        finished = asyncio.Event()
        try:
            async with self._shown(), asyncio.TaskGroup() as group:
                life = group.create_task(self.node.run(finished), name="node")
                work = group.create_task(self._work(), name="cameras")
                waiter = group.create_task(stop.wait(), name="stop")
                await asyncio.wait({life, work, waiter}, return_when=asyncio.FIRST_COMPLETED)
                self._end()
                if self.node.became_ready.is_set() and not work.done() and not life.done():
                    within = self.node.config.budget + 1.0
                    first = asyncio.FIRST_COMPLETED
                    await asyncio.wait({work, life}, timeout=within, return_when=first)
                waiter.cancel()
                work.cancel()
                finished.set()
        finally:
            await asyncio.gather(*(eye.close() for eye in self._cameras.eyes))
            self._mask.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            for eye in self._cameras.eyes:
                log.info("%s", eye.summary())
        if not stop.is_set() and not any(eye.was_read for eye in self._cameras.eyes):
            told = "; ".join(eye.summary() for eye in self._cameras.eyes)
            raise Unavailable(f"--source: nothing was read to its end: {told}")

    def _crops(self, camera: CameraOptions) -> Crops | None:
        if not camera.crops:
            return None
        rule = CropRule(camera.crops_alike, camera.crops_oldest)
        return Crops(self.node, camera.crops, rule, camera.crops_most, self._say, self._in_pool)

    @contextlib.asynccontextmanager
    async def _shown(self) -> AsyncIterator[None]:
        """With a page, a file or a window, as the settings ask. Raises `InvalidArgument`."""
        camera = self.node.config.of(CameraOptions)
        if not (camera.view or camera.save or camera.show):
            yield
            return
        from nodes.cameras.shows import Shows  # an edge that shows nothing draws nothing

        board = Board() if camera.view else None
        names = [eye.source.name for eye in self._cameras.eyes]
        page = None if board is None else self._page(board, camera.view)
        try:
            self._shows = Shows(board, camera.save, camera.show, names)
            try:
                yield
            finally:
                await asyncio.to_thread(self._shows.close)
        finally:
            if page is not None:
                page.cancel()
                await asyncio.wait({page})

    def _page(self, board: Board, where: str) -> asyncio.Task[None]:
        try:
            from nodes.cameras.view import application, own_place, serve
        except ModuleNotFoundError as error:
            text = f"--view: {error}: pip install 'swarm-mesh[perception]'"
            raise InvalidArgument(text) from None
        place = own_place(where)
        sock = place.listen("--view")
        log.info("cameras at http://%s/", place.at(sock.getsockname()[1]))
        return asyncio.create_task(serve(application(board, self._state), sock, board))

    def _state(self) -> dict[str, Any]:
        """What the page tells."""
        now = time.monotonic()
        cameras = [eye.shown(now) for eye in self._cameras.eyes]
        return {"node": self.node.id, "model": self.node.config.model, "cameras": cameras}

    async def _work(self) -> None:
        await self.node.became_ready.wait()
        doors = [each.door for each in self._cameras.eyes if isinstance(each.door, MaskingDoor)]
        if doors:
            detector = await self._mask.load()
            for door in doors:
                door.use(detector)
        async with asyncio.TaskGroup() as group:
            for eye in self._cameras.eyes:
                group.create_task(self._watch(eye, group), name=f"camera {eye.source.name}")

    def _end(self) -> None:
        """No frame is sent from now on."""
        self._over.set()
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_result(False)

    async def _watch(self, eye: Eye, group: asyncio.TaskGroup) -> None:
        """Send one camera's frames, each when it is its turn."""
        over = asyncio.create_task(self._over.wait(), name="over")
        try:
            while not self._over.is_set():
                arrived = asyncio.ensure_future(eye.source.arrived())
                await asyncio.wait({arrived, over}, return_when=asyncio.FIRST_COMPLETED)
                if not arrived.done():
                    arrived.cancel()
                    return
                if not arrived.result() or not await self._turn(eye.source.name):
                    return
                frame = await eye.source.latest()
                if frame is None or self._over.is_set():
                    self._ended()
                    return
                if await self._is_skipped(eye, frame, group):
                    self._ended()
                    continue
                self._sent += 1
                if self.options.count and self._sent >= self.options.count:
                    self._end()
                eye.sent += 1
                seeing = self._see(eye, frame, self._sent, eye.computing)
                eye.computing = group.create_task(seeing, name=f"frame {self._sent}")
        finally:
            over.cancel()

    async def _is_skipped(self, eye: Eye, frame: Frame, group: asyncio.TaskGroup) -> bool:
        """Whether the gate lets the last result stand for this frame."""
        gate = eye.gate
        if gate is None:
            return False
        standing = eye.standing(await self._version())
        if standing.is_alarmed and eye.asks_whole:
            gate.failed()
        verdict = await self._in_pool(lambda: gate.look(frame, standing))
        if not verdict.computes:
            repeating = self._repeat(eye, frame, verdict.skipped, eye.computing)
            group.create_task(repeating, name=f"repeat {frame.sequence}")
        return not verdict.computes

    async def _version(self) -> str:
        """Of the model, as the mesh desires it now; "" where nobody knows."""
        node = self.node
        if node.config.version:
            return node.config.version
        try:
            # One id for all frames: a share of the traffic is no change of the version.
            return await node.mesh.catalog.version_for(node.config.model_name, node.id, "", "gate")
        except SwarmError:
            return ""

    # --- turns ----------------------------------------------------------------------------

    async def _turn(self, name: str) -> bool:
        """Wait until this source may send a frame; False when none may any more."""
        if self._over.is_set():
            return False
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[name] = turn
        self._grant()
        try:
            return await turn
        finally:
            self._waiting.pop(name, None)

    def _grant(self) -> None:
        send_rate = self.node.mesh.bulk.send_rate
        now = time.monotonic()
        while True:
            waiting = [name for name, turn in self._waiting.items() if not turn.done()]
            name = self._turns.next(waiting, send_rate.transfer(now), send_rate.round_trip)
            if name is None:
                return
            self._turns.began(name, now)
            self._waiting[name].set_result(True)

    def _ended(self) -> None:
        self._turns.ended()
        self._grant()

    # --- a frame --------------------------------------------------------------------------

    async def _see(
        self, eye: Eye, frame: Frame, number: int, before: asyncio.Task[SeenFrame] | None
    ) -> SeenFrame:
        """before: the frame that was sent before this one, whose answer goes first where all
        frames of the source are told."""
        anatomy = Anatomy(frame.captured, frame.decode_ms / 1e3, time.monotonic())
        try:
            seen = replace(await self._seen(eye, frame, number, anatomy), moment=frame.moment)
            if eye.source.waits and before is not None:
                await asyncio.wait({before})
            seen = await self._asked_about(eye, eye.follow(seen))
        finally:
            self._ended()
        if seen.is_good:
            self._turns.answered(seen.result.latency, seen.result.hops)
            self.counters.answered += 1
            self.counters.degraded += seen.result.degraded
        else:
            self.counters.failed += 1
            self._say(f"a frame has no answer: {seen.result.status}: {seen.result.message}")
        anatomy.read = time.monotonic()
        eye.saw(seen)
        self._deliver(eye, frame, seen)
        if self._shows is None:
            self._explain(frame, anatomy)
        elif eye.last is seen:  # a frame that was overtaken is not shown
            drawn = asyncio.Event()

            def done() -> None:
                self._explain(frame, anatomy)
                drawn.set()

            self._shows.offer(eye, seen, done)
            if eye.source.waits:  # what is played whole is shown whole
                await drawn.wait()
        return seen

    async def _seen(self, eye: Eye, frame: Frame, number: int, anatomy: Anatomy) -> SeenFrame:
        """The frame's answer; a failure is one, too."""
        node, model = self.node, self.node.config.model_name
        request = Request({}, budget=node.config.budget, agent=node.id)
        request.id = ulid()
        cleared: Cleared | None = None
        try:
            passed = await eye.door.clear(frame)
            if isinstance(passed, Withheld):
                raise Held(f"--mask: {passed.detail}")
            cleared = passed
            version = node.config.version or await node.mesh.catalog.version_for(
                model, request.agent, request.session, request.id
            )
            task = await self._tasks.of(model, version)
            image = image_of(cleared)
            request.inputs = await self._in_pool(lambda: task.prepare(image))
        except (SwarmError, ShardsError) as error:
            status = error.status if isinstance(error, SwarmError) else Status.INTERNAL
            failed = Result(request.id, model, "", status=status, message=str(error))
            return SeenFrame(frame.sequence, failed, anatomy, cleared)
        anatomy.prepared = time.monotonic()
        as_picture = self._as_picture(task, cleared)
        result = await node.answerer.answer(
            model, request, number, self._leaves(eye, frame), as_picture
        )
        anatomy.answered, anatomy.hops = time.monotonic(), result.hops
        if eye.is_alarmed:
            self._reviews.ask(eye, cleared)
        if result.degraded and eye.is_alarmed and eye.asks_whole:
            result = Result(
                request.id,
                model,
                version,
                status=Status.UNAVAILABLE,
                message="--guard-action whole: a lighter model's answer is not taken",
            )
        if result.status is not Status.OK:
            # What the guard held back is shown nowhere either.
            shown = None if result.status is Held.status else cleared
            return SeenFrame(frame.sequence, result, anatomy, shown)
        if result.version not in ("", version):
            with contextlib.suppress(SwarmError, ShardsError):  # the other one's may read it
                task = await self._tasks.of(model, result.version)
        found = await self._read(task, result, image)
        return SeenFrame(frame.sequence, result, anatomy, cleared, found)

    def _as_picture(self, task: PictureTask, cleared: Cleared) -> AsPicture | None:
        """Makes the JPEG of `--send jpeg`, of what may leave."""
        quality = self._quality
        if not quality or not isinstance(task, Task):
            return None

        async def encode(info: ModelInfo) -> Mapping[str, np.ndarray]:
            return await self._in_pool(lambda: jpeg_of(task, image_of(cleared), quality))

        return encode

    async def _asked_about(self, eye: Eye, seen: SeenFrame) -> SeenFrame:
        """With what the model of `--crops` says of the frame's objects."""
        if eye.crops is None or seen.cleared is None or not isinstance(seen.found, Detections):
            return seen
        began = time.monotonic()
        documents = await eye.crops.of(seen.cleared, seen.found)
        seen.anatomy.crops = time.monotonic() - began
        return replace(seen, crops=tuple(documents))

    def _leaves(self, eye: Eye, frame: Frame) -> Leaves | None:
        """The guard's look at what is about to leave."""
        guard = eye.guard
        if guard is None:
            return None

        def look(info: ModelInfo, tensors: Mapping[str, np.ndarray]) -> None:
            guard.leaves(info, tensors, frame.captured)

        return look

    async def _read(self, task: PictureTask, result: Result, image: np.ndarray) -> Any:
        try:
            return await self._in_pool(lambda: task.read(result.outputs, image.shape))
        except (SwarmError, ShardsError, ValueError) as error:
            self._say(f"an answer cannot be read by the model's task: {error}")
            return None

    # --- results --------------------------------------------------------------------------

    def _deliver(self, eye: Eye, frame: Frame, seen: SeenFrame) -> None:
        anatomy = seen.anatomy
        line = _begun(frame, seen)
        line["age_ms"] = round((anatomy.read - frame.captured) * 1e3, 3)
        line["decode_ms"] = round(frame.decode_ms, 3)
        line["spent_ms"] = anatomy.parts()
        self._publish(eye, line, seen)

    async def _repeat(
        self, eye: Eye, frame: Frame, skipped: int, computing: asyncio.Task[SeenFrame] | None
    ) -> None:
        """The last computed frame's answer stands for this frame, with its own age."""
        if computing is None:
            return
        eye.repeated += 1
        await asyncio.wait({computing})
        if computing.cancelled() or computing.exception() is not None:
            return
        seen = computing.result()
        if not seen.is_good:
            return
        age = round((time.monotonic() - seen.anatomy.captured) * 1e3, 3)
        line = _begun(frame, seen)
        line |= {"repeats": seen.sequence, "skipped": skipped, "age_ms": age}
        self._publish(eye, line, seen)

    def _publish(self, eye: Eye, line: dict[str, Any], seen: SeenFrame) -> None:
        if seen.is_good:
            line |= told(seen.found, seen.result.outputs)
        if eye.crops is not None:
            line["crops"] = seen.crops
        if eye.guard is not None:
            verdict = eye.guard.verdict
            line["guard"] = {"state": verdict.state, "distance": verdict.distance}
        data = json.dumps(line, separators=(",", ":"))
        if self.options.sink == "stdout":
            sys.stdout.write(data + "\n")
            sys.stdout.flush()
        else:
            self._results.publish(data.encode())

    def _explain(self, frame: Frame, anatomy: Anatomy) -> None:
        if (
            self.node.config.of(CameraOptions).explain
            and anatomy.read >= self._explained + EXPLAIN_EVERY
        ):
            self._explained = anatomy.read
            print(explained(frame.source, frame.sequence, anatomy), file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        """A fault of many frames: said once."""
        if text not in self._said and len(self._said) < MOST_SAID:
            self._said.add(text)
            log.warning("%s", text)

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _begun(frame: Frame, seen: SeenFrame) -> dict[str, Any]:
    """A frame's line, as far as it tells whose answer it is."""
    line: dict[str, Any] = {"source": frame.source}
    if frame.file:
        line["file"] = frame.file
        line |= {} if frame.at is None else {"time_s": round(frame.at, 3)}
    return line | result_line(frame.sequence, seen.result, told=False)
