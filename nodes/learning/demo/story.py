"""`swarm demo --learn`: eight nodes that have seen two or three digits each learn all ten.

    eight learners ──deltas──► each other           a pipeline of three shards and a fallback
          │ now and then a weight version ─────────► serves it, 50 requests a second

One learner is killed and another one joins. Then two hostile members with valid keys attack, one
after the other. All parts are separate processes but the attackers, which live in this one; every
figure is measured. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.live import Live
from rich.text import Text

import swarm
from nodes.console import out, print_json
from nodes.demo.frame import MODEL, StoryOptions, StoryRun, kill, run_story, start_pipeline
from nodes.learning.demo.attacker import FLIP, NOISE, attack
from nodes.learning.demo.declared import LearnStory
from nodes.learning.demo.plot import picture, plot
from nodes.learning.demo.record import LearnRecord, figures, missed
from nodes.learning.frozen import FrozenModel
from nodes.learning.options import LearnOptions
from nodes.learning.references import References, references, split_by_label
from nodes.learning.samples import SampleWindow
from nodes.learning.training import Training
from nodes.up.mesh import LocalMesh, local_mesh
from nodes.up.supervisor import NodeProcess
from shards.split.balance import ONE_HOST_BYTES_PER_MS
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout, digits_training
from shards.zoo.fresh_head import digits_with_fresh_head
from swarm.errors import SwarmError, Unavailable
from swarm.learning.consensus.layout import Layout
from swarm.learning.consensus.sparse import top_k
from swarm.learning.consensus.wire import ConsensusMessage, Scope, encode, tensors_of
from swarm.link import LinkMessage
from swarm.model import ModelInfo
from swarm.scratch import Scratch
from swarm.security.identity import Identity

# Each class is at two nodes at least, so that one may die.
CLASSES = ((0, 1), (2, 3), (4, 5), (6, 7, 8), (8, 9, 0), (1, 2, 3), (4, 5, 6), (7, 9))
VICTIM = 2  # of the learners, by number
ROUND = 0.4  # seconds
MINT = 2.0  # seconds
# Parts of the demo's time.
KILL_AT, JOIN_AT, ATTACK_AT = 0.3, 0.4, 0.6
ATTACK_FOR = 0.17  # part of the demo's time that each attack lasts, from its first hostile delta
BEGIN_WITHIN = 30.0  # seconds in which an attacker has joined and earned its place
BUDGET = 3.0  # seconds of a request
LEAST_WAIT = 0.01  # seconds before a refused request is asked again
TEST_EVERY = 1.5  # seconds between two looks at a learner's accuracy
TEST_IMAGES = 180  # of such a look; the last one takes all
READY = 60.0  # seconds that the processes may take to start
QUIET = 2.5  # seconds of requests before anything is taught


def tell(asked: StoryOptions) -> int:
    """Exit code 0 only if every target was reached. Learns for the seconds that are asked for."""
    options = asked.given.of(LearnStory) or LearnStory()

    async def story(frame: StoryRun) -> None:
        demo = LearnDemo(frame, asked.rate or 50.0)
        await demo.run()
        frame.code = _report(demo.record, options.picture, asked.as_json)

    return run_story(story, asked, seconds=60.0)


def _report(record: LearnRecord, picture_path: str, as_json: bool) -> int:
    doc = figures(record)
    failed = missed(doc)
    drawn = picture(record, picture_path) if picture_path else ""
    if as_json:
        print_json(doc | {"missed": failed, "picture": drawn})
        return 1 if failed else 0
    out.print(plot(record, record.now))
    for heading, values in doc.items():
        out.print(f"  [bold]{heading}[/]")
        rows = values.items() if isinstance(values, dict) else [("", values)]
        for key, value in rows:
            out.print(f"    {key.replace('_', ' '):<24}{value}", highlight=False, markup=False)
    for sentence in failed:
        out.print(f"[bold red]missed:[/] {sentence}")
    if not failed:
        out.print("[bold green]eight nodes learned what none of them has seen alone[/]")
    out.print(f"the picture is in {drawn}" if drawn else "no picture: pip install matplotlib")
    out.print("next: swarm-node --role learner --model NAME, then swarm teach NAME …")
    return 1 if failed else 0


@dataclass
class LearnDemo:
    """rate: requests a second."""

    frame: StoryRun
    rate: float
    record: LearnRecord = field(default_factory=LearnRecord)
    _honest: dict[str, NodeProcess] = field(default_factory=dict)
    _keys: dict[str, Identity] = field(default_factory=dict)

    async def run(self) -> None:
        """The whole story."""
        self.frame.tell("splitting a model whose head has learned nothing yet …")
        result = await asyncio.to_thread(self._split)
        info = ModelInfo.from_manifest(result.manifest.to_json())
        self._frozen = FrozenModel.load(result.manifest, info, result.files.__getitem__)
        self._images, self._labels = digits_training()
        self._parts = split_by_label(self._labels, CLASSES)
        self.record.references = await asyncio.to_thread(self._compute_references)
        self.record.dense_bytes = self._dense_message()
        self.frame.tell("starting a NATS server, a pipeline of four nodes and eight learners …")
        with Scratch("learn") as folder:
            async with local_mesh() as local:
                self._make_keys(folder)
                await start_pipeline(local, result, "--teachers", str(folder / "teachers"))
                for number in range(len(CLASSES)):
                    self._start(local, folder, f"learner-{number + 1}")
                await self.frame.shown(local, result.manifest, READY)
                await self._until_learning(local, list(self._honest.values()))
                self._listen(local)
                await self._story(local, folder)
        self._frozen.close()

    @staticmethod
    def _split() -> SplitResult:
        model = digits_with_fresh_head()
        return split(model, name=MODEL, stages=3, bandwidth=ONE_HOST_BYTES_PER_MS)

    def _compute_references(self) -> References:
        held, held_labels = digits_heldout()
        return references(
            self._frozen.layout,
            self._frozen.features({"image": self._images}),
            self._labels,
            self._parts,
            (self._frozen.features({"image": held}), held_labels),
            int(self.frame.seconds / ROUND),
            LearnOptions(),
        )

    def _dense_message(self) -> int:
        """Bytes of a message of full gossip: the same form and signature, with every weight."""
        layout = Layout.of(self._frozen.shipped)
        scope = Scope("default", MODEL, "1", bytes.fromhex(self._frozen.model_id), 0)
        everything = np.ones(layout.size, np.float32)
        tensors = tensors_of(layout, top_k(everything, layout.size), half=False)
        message = ConsensusMessage("", "delta", scope, "learner-1", 1, 1, tensors=tensors)
        return len(encode(Identity.make(), message))

    # --- the processes --------------------------------------------------------------------

    def _make_keys(self, folder: Path) -> None:
        """A key for each member, the hostile ones included, and the list that allows them all."""
        names = [f"learner-{number}" for number in range(1, len(CLASSES) + 2)]
        for name in (*names, "hostile-noise", "hostile-flip"):
            self._keys[name] = Identity.load_or_make(folder / name)
        lines = [f"{key.public}  {name}" for name, key in self._keys.items()]
        (folder / "teachers").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _start(self, local: LocalMesh, folder: Path, name: str) -> NodeProcess:
        node = local.start(
            "learner",
            MODEL,
            *("--node", name, "--identity", str(folder / name)),
            *("--teachers", str(folder / "teachers"), "--gossip", "local"),
            *("--learn-every", str(ROUND), "--mint-every", str(MINT), "--hostile", "0.25"),
        )
        self._honest[name] = node
        return node

    async def _until_learning(self, local: LocalMesh, nodes: list[NodeProcess]) -> None:
        def learns(node: NodeProcess) -> bool:
            return "rounds" in (local.status_of(node) or {}).get("learning", {})

        if not await local.until(lambda: all(map(learns, nodes)), READY):
            node = next(node for node in nodes if not learns(node))
            raise Unavailable(f"a learner did not begin:\n{local.tail(node)}")

    async def _teach(self, local: LocalMesh, name: str, number: int) -> None:
        part = self._parts[number]
        inputs = {"image": self._images[part]}
        await local.mesh.teach(MODEL, inputs, self._labels[part], node=name)

    # --- the story ------------------------------------------------------------------------

    async def _story(self, local: LocalMesh, folder: Path) -> None:
        self.record.began = asyncio.get_running_loop().time()
        self.frame.began = self.record.began + QUIET
        local.mesh.link.subscribe(local.mesh.subjects.event("learning"), self._on_event)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(self._ask(local.mesh, group), name="requests"),
                group.create_task(self._test_regularly(local), name="tests"),
                group.create_task(self._draw(), name="plot"),
            ]
            await asyncio.sleep(QUIET)
            for number in range(len(CLASSES)):
                await self._teach(local, f"learner-{number + 1}", number)
            self._say("each learner was taught its two or three digits")
            for part, scene in (
                (KILL_AT, self._kill),
                (JOIN_AT, self._join),
                (ATTACK_AT, self._before_attack),
            ):
                await self.frame.until_part(part)
                await scene(local, folder)
            for kind in (NOISE, FLIP):
                begun = asyncio.Event()
                attacker = group.create_task(self._attack(local, kind, begun), name=kind)
                await _until_begun(begun)
                await asyncio.sleep(ATTACK_FOR * self.frame.seconds)
                await _end([attacker])
            await _end(background)
        self.record.at_end = await self._test_all(local, len(digits_heldout()[1]))

    async def _kill(self, local: LocalMesh, folder: Path) -> None:
        name = f"learner-{VICTIM + 1}"
        node = self._honest.pop(name)
        self._say(f"{name} (pid {node.pid}) gets SIGKILL")
        kill(node)

    async def _join(self, local: LocalMesh, folder: Path) -> None:
        name = f"learner-{len(CLASSES) + 1}"
        self._say(f"{name} joins")
        node = self._start(local, folder, name)
        await self._until_learning(local, [node])
        await self._teach(local, name, VICTIM)

    async def _before_attack(self, local: LocalMesh, folder: Path) -> None:
        self.record.before_attack = await self._test_all(local, len(digits_heldout()[1]))

    async def _attack(self, local: LocalMesh, kind: str, begun: asyncio.Event) -> None:
        """A ninth member that holds a valid key, and samples of all digits."""
        name = f"hostile-{kind}"
        self.record.doubted[name] = set()
        samples = SampleWindow(self._frozen.layout.width, self._frozen.layout.classes)
        features = await asyncio.to_thread(self._frozen.features, {"image": self._images})
        samples.add(features, self._labels)
        training = Training(self._frozen.layout, samples, LearnOptions(), 99)

        def begins() -> None:
            self._say(f"{name}, with a valid key, begins to attack")
            begun.set()

        async with swarm.connect(local.url, local.name) as mesh:
            await attack(
                kind,
                mesh,
                self._keys[name],
                self._frozen,
                training,
                node=name,
                every=ROUND,
                peers=list(self._honest),
                on_begin=begins,
            )

    def _on_event(self, message: LinkMessage) -> None:
        doc = json.loads(bytes(message.data))
        sender, what = str(doc.get("sender", "")), str(doc.get("what", ""))
        if sender in self.record.doubted and what in ("blocked", "doubted", "refused"):
            known = self.record.doubted[sender]
            if not known:
                self._say(f"{doc['node']} takes nothing of {sender} ({what})")
            known.add(str(doc["node"]))

    def _say(self, text: str) -> None:
        self.record.say(text)
        if not self.frame.live:
            self.frame.tell(text)

    # --- measuring ------------------------------------------------------------------------

    def _listen(self, local: LocalMesh) -> None:
        def heard() -> None:
            for status in local.statuses.values():
                if "rounds" in (learning := status.get("learning", {})):
                    self.record.learned(status["node"], learning)

        local.mesh.link.subscribe(local.mesh.subjects.status_all, lambda _: heard())

    async def _test_regularly(self, local: LocalMesh) -> None:
        while True:
            await self._test_all(local, TEST_IMAGES)
            await asyncio.sleep(TEST_EVERY)

    async def _test_all(self, local: LocalMesh, count: int) -> dict[str, float]:
        """Each living learner's accuracy on the first `count` images that nobody trains on."""
        images, labels = digits_heldout()
        found: dict[str, float] = {}
        for name in list(self._honest):
            with contextlib.suppress(SwarmError):  # it was killed, or does not listen yet
                tested = await local.mesh.teach(
                    MODEL,
                    {"image": images[:count]},
                    labels[:count],
                    node=name,
                    only_test=True,
                    timeout=5.0,
                )
                assert tested.accuracy is not None
                found[name] = tested.accuracy
                self.record.tested(name, tested.accuracy)
        return found

    async def _ask(self, mesh: swarm.Mesh, group: asyncio.TaskGroup) -> None:
        """Requests at a steady rate, answered or not."""
        images, labels = digits_heldout()
        loop = asyncio.get_running_loop()
        began, number = loop.time(), 0
        while True:
            await asyncio.sleep(max(0.0, began + number / self.rate - loop.time()))
            at = number % len(labels)
            group.create_task(self._ask_once(mesh, images[at : at + 1], int(labels[at])))
            number += 1

    async def _ask_once(self, mesh: swarm.Mesh, image: np.ndarray, label: int) -> None:
        """Answered, or lost: a refusal says when to come back, and its client does."""
        self.record.asked += 1
        loop = asyncio.get_running_loop()
        end = loop.time() + BUDGET
        result = await mesh.ask(MODEL, {"image": image}, BUDGET)
        while result.status is swarm.Status.RESOURCE_EXHAUSTED:
            self.record.refused += 1
            await asyncio.sleep(max(LEAST_WAIT, result.retry_after))
            if (left := end - loop.time()) <= 0:
                break
            result = await mesh.ask(MODEL, {"image": image}, left)
        if result.status is not swarm.Status.OK:
            self.record.failures.append(f"{result.status}: {result.message}")
            return
        right = int(result.outputs["logits"].argmax()) == label
        self.record.answered(right, result.latency, result.weights)

    async def _draw(self) -> None:
        if not self.frame.live:
            return
        total = QUIET + self.frame.seconds
        with Live(console=out, refresh_per_second=4, transient=True) as screen:
            while True:
                story = "\n".join(f"{at:5.1f} s  {text}" for at, text in self.record.story[-6:])
                answers = len(self.record.latencies)
                line = f"{answers} answered, {len(self.record.failures)} failed"
                screen.update(
                    Group(plot(self.record, total), Text(line, "bold"), Text(story, "yellow"))
                )
                await asyncio.sleep(0.25)


async def _until_begun(begun: asyncio.Event) -> None:
    """Raises `Unavailable` where the attacker did not get into the mesh."""
    try:
        async with asyncio.timeout(BEGIN_WITHIN):
            await begun.wait()
    except TimeoutError:
        raise Unavailable(f"the attacker did not join within {BEGIN_WITHIN:g} s") from None


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
