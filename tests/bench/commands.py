"""`swarm bench …`: the commands and their options.

A command imports its benchmark when it runs: nothing else in the programs imports `bench`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.feature import features
from nodes.cli.bench import reach_benchmarks
from nodes.cli.command import as_command, option
from nodes.cli.options import Json

if TYPE_CHECKING:
    from bench.fleets.links import Shape
    from bench.report.frame import Benchmark, Plan

Rounds = Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds.")]
Delivery = Annotated[str, typer.Option(help="durable (lanes) or fast (nothing is stored).")]


@dataclass(frozen=True)
class Told:
    """How a result is told."""

    json: Json = False
    output: str = option("", "Write the JSON document here.", "-o", "--output")

    def run(self, benchmark: Benchmark[Plan], plan: Plan) -> int:
        """Measure, and tell the result; returns the exit code."""
        return benchmark.run(plan, self.json, output=self.output)


@dataclass(frozen=True)
class Drawn(Told):
    """How a result is told, with an image."""

    chart: str = option("", "Draw the result into this image (needs matplotlib).")

    def run(self, benchmark: Benchmark[Plan], plan: Plan) -> int:
        """As `Told.run`."""
        return benchmark.run(plan, self.json, self.chart, self.output)


HOP_SIZES = "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,2MiB,4MiB,8MB"
TRUST_SIZES = "4KiB,1MiB"
# The largest is decimal: with its header the message must fit into the 8 MiB above which
# nats-server warns.
MOST_REAL_NODES = 200  # of `scale`; of more all but twenty are imitated


def hop(
    tell: Drawn,
    sizes: str = option(HOP_SIZES, "Bytes of features, separated by commas."),
    requests: int = option(150, "In one slice of one contender.", min=1),
    rounds: Rounds = 5,
    delivery: Delivery = "durable",
    trust: bool = option(
        False, "Instead: what users, TLS and encryption at rest cost; 4KiB and 1MiB."
    ),
) -> int:
    """What the mesh adds per hop, beside raw NATS chains measured in the same run."""
    from bench.cost.hop import HOP, HopPlan
    from bench.cost.sizes import parse_sizes
    from bench.cost.trust import TRUST

    delivery = _delivery_mode(delivery)
    try:
        feature_bytes = parse_sizes(TRUST_SIZES if trust and sizes == HOP_SIZES else sizes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sizes") from None
    plan = HopPlan(feature_bytes, requests, rounds, delivery)
    return tell.run(TRUST if trust else HOP, plan)


def throughput(
    tell: Drawn,
    models: str = option(
        "digits,resnet50,ultraface", "digits, resnet50, resnet50-small, ultraface."
    ),
    concurrency: str = option("1,2,4,8,16,32,64", "Requests at once."),
    rounds: Rounds = 3,
    seconds: float = option(2.0, "Length of a slice.", min=0.1),
    stages: int = option(3, "Processes of a pipeline.", min=1, max=16),
    delivery: Delivery = "durable",
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What a pipeline yields, beside the same cores without a mesh."""
    from bench.cost.pipelines import PIPELINES
    from bench.cost.throughput import THROUGHPUT, ThroughputPlan

    delivery = _delivery_mode(delivery)
    names = _known(models, PIPELINES)
    levels = numbers_of(concurrency, "--concurrency")
    plan = ThroughputPlan(names, levels, rounds, seconds, stages, delivery, ultraface)
    return tell.run(THROUGHPUT, plan)


def gateway(
    tell: Told,
    requests: int = option(300, "In one slice of one way.", min=8),
    rounds: Rounds = 5,
    faults: int = option(
        0, "Instead: what tritonclient sees of kill -9 and restarts, so many times each.", min=0
    ),
    rivals: bool = option(False, "Beside mosec and Ray Serve, too: installs half a gigabyte."),
    crowd: bool = option(False, "Instead: memory and errors under 100 connections; slow senders."),
) -> int:
    """What a gateway's clients wait longer than a client of the mesh; beside bare uvicorn."""
    if faults:
        from bench.faults.gateway_faults import FAULTS_SEEN, FaultsPlan

        return tell.run(FAULTS_SEEN, FaultsPlan(trials=faults))
    if crowd:
        from bench.cost.gateway_crowd import CROWD, CrowdPlan

        return tell.run(CROWD, CrowdPlan(rounds=rounds))
    from bench.cost.gateway import GATEWAY, GatewayPlan

    return tell.run(GATEWAY, GatewayPlan(requests, rounds, rivals=rivals))


def generate(
    tell: Told,
    sessions: str = option("1,4,16", "At a time, with commas."),
    tokens: int = option(200, "Of each answer.", min=2, max=400),
    rounds: Rounds = 5,
    kills: int = option(
        0, "Instead: kill -9 of each stage, so often, at random moments of 8 sessions.", min=0
    ),
    follow: bool = option(False, "Of --kills: by turns with a fallback that follows."),
    drafts: int = option(
        0,
        "Instead: what so many drafts a round gain the toy, also behind --link; with "
        "--kills, of single sessions.",
        min=0,
        max=16,
    ),
    draft_model: str = option("toy-draft", "A toy that guesses them; empty for none."),
    flood: bool = option(False, "Instead: another client opens 500 chats, all the time."),
    prefix: bool = option(False, "Instead: the first token of prompts that begin alike."),
    replicas: int = option(1, "Nodes of each stage, of --prefix.", min=1),
    many: int = option(0, "Instead: the nodes' memory behind so many sessions.", min=0),
    link: str = option("", "Instead: stage 2 behind a link of Mbit/s/ms/percent lost (root)."),
    memory: int = option(0, "Instead: three nodes with a Qwen2-0.5B of 4 or 32 bits a weight."),
) -> int:
    """Tokens of a language model in three shards, beside one process that holds all of it."""
    if kills:
        from bench.generation.killed_stages import KILLED, KillPlan

        plan = KillPlan(kills, tokens=tokens, follow=follow)
        if drafts:  # nothing is guessed beside other sessions
            plan = replace(plan, sessions=1, drafts=drafts)
        return tell.run(KILLED, plan)
    if flood:
        from bench.generation.flood import FLOOD, FloodPlan

        return tell.run(FLOOD, FloodPlan(rounds=rounds))
    if prefix:
        from bench.generation.prefixes import PREFIXES, PrefixPlan

        return tell.run(PREFIXES, PrefixPlan(rounds=rounds, replicas=replicas))
    if many:
        from bench.generation.memory import MEMORY, MemoryPlan

        return tell.run(MEMORY, MemoryPlan(many))
    at_once = tuple(numbers_of(sessions, "--sessions"))
    shape = _link_shape(link) if link else None
    if drafts:
        from bench.generation.drafts import DRAFTS, DraftPlan

        guessed = DraftPlan(drafts, draft_model, tokens, rounds, shape)
        return tell.run(DRAFTS, guessed)
    if shape is not None:
        from bench.generation.link import LINKED, LinkPlan

        return tell.run(LINKED, LinkPlan(shape, at_once, tokens, rounds))
    if memory:
        from bench.generation.resident import RESIDENT, ResidentPlan

        if memory not in (4, 32):
            raise typer.BadParameter("4 or 32 bits a weight", param_hint="--memory")
        bits: Literal[4, 32] = 4 if memory == 4 else 32
        return tell.run(RESIDENT, ResidentPlan(bits))
    from bench.generation.generate import GENERATE, GeneratePlan

    return tell.run(GENERATE, GeneratePlan(at_once, tokens, rounds))


def _link_shape(text: str) -> Shape:
    from bench.fleets.links import shapes_of
    from swarm.errors import InvalidArgument

    try:
        (shape,) = shapes_of(text)
    except (InvalidArgument, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--link") from None
    return shape


def oip(
    examples: Annotated[Path, typer.Option(help="A folder with Triton's simple_*.py.")], tell: Told
) -> int:
    """Triton's client examples, unmodified, against a gateway: their exit codes."""
    from bench.conformance import CONFORMANCE, ConformancePlan

    return tell.run(CONFORMANCE, ConformancePlan(examples))


def scale(
    tell: Drawn,
    nodes: str = option(
        "3,12,25,50,100",
        "Nodes; empty: no such sweep. A number over 200 alone: twenty real nodes among "
        "imitated ones, beside a mesh of five.",
    ),
    models: str = option("1,5,10,25,50", "Models, three nodes each."),
    agents: str = option("1,10,100,300,1000", "Clients asking at once."),
    requests: int = option(2000, "At each point.", min=1),
    hosts: int = option(2, "Processes the nodes are spread over.", min=1),
    rounds: Rounds = 1,
    trials: int = option(5, "Kills in a large fleet, and in five.", min=1),
) -> int:
    """What grows with nodes, models and agents; the laws in words."""
    counts = numbers_of(nodes, "--nodes") if nodes else []
    if max(counts, default=0) > MOST_REAL_NODES:
        if len(counts) > 1:
            raise typer.BadParameter(f"--nodes: more than {MOST_REAL_NODES} nodes stand alone")
        from bench.fleets.large_fleet import LARGE_FLEET, LargeFleetPlan

        large = LargeFleetPlan(counts[0], trials=trials)
        return tell.run(LARGE_FLEET, large)
    from bench.fleets.scale import SCALE, ScalePlan
    from bench.fleets.scale_point import Point

    plan = ScalePlan(
        counts,
        numbers_of(models, "--models") if models else [],
        numbers_of(agents, "--agents") if agents else [],
        rounds,
        Point(requests=requests, hosts=hosts),
    )
    return tell.run(SCALE, plan)


def peers(
    tell: Drawn,
    only: str = option("", "Contenders, with commas; all when empty."),
    rounds: Rounds = 3,
    kinds: str = option(
        "tiny,large,resnet50", "tiny (4 KB features), large (0.8-1.6 MB), resnet50."
    ),
    environment: str = option("", "Where the peers are installed; in the user's cache when empty."),
) -> int:
    """The mesh beside what users would pick; installs them into an environment of their own."""
    from bench.rivals.peers import PEERS, PeersPlan

    plan = PeersPlan(_words(only), rounds, _words(kinds), environment)
    return tell.run(PEERS, plan)


def compare(
    before: Annotated[str, typer.Argument(help="A JSON document; `baseline`: the stored one.")],
    after: Annotated[str, typer.Argument(help="Another one of the same benchmark.")],
    fail_above: float = option(0.0, "Exit 1 when a ratio to a floor got so many times worse."),
    all_: bool = option(False, "Show what did not change, too.", "--all"),
    json: Json = False,
) -> int:
    """What changed between two results, with the spread of their rounds."""
    from bench.report.compare import BASELINE, run_compare

    first = str(BASELINE) if before == "baseline" and not Path(before).exists() else before
    return run_compare(first, after, fail_above, json, all_)


def regression(
    limit: float = option(0.0, "Most of the ratio to the floor; 0: the gate's own.", min=0.0),
    attempts: int = option(3, "The best one counts.", min=1, max=20),
    json: Json = False,
) -> int:
    """The gate of CI: a 4 KiB hop by `swarm up` beside raw JetStream; exit 1 above the limit."""
    from bench.cost.regression import MOST_RATIO, REGRESSION, RegressionPlan

    return REGRESSION.run(RegressionPlan(limit or MOST_RATIO, attempts), json)


def gossip(
    tell: Drawn,
    full: bool = option(False, "Up to 2000 nodes: some minutes."),
    seed: int = option(1, "Of the simulation."),
) -> int:
    """What the gossip achieves, simulated: spread, traffic, crashes, splits."""
    from bench.simulations import GOSSIP, SimulationPlan

    return tell.run(GOSSIP, SimulationPlan(full, seed))


def learning(
    tell: Drawn,
    full: bool = option(False, "Up to 256 nodes: a quarter of an hour."),
    seed: int = option(1, "Of the simulation."),
) -> int:
    """What a fleet learns by sparse deltas, simulated, beside a parameter server's bytes."""
    from bench.simulations import LEARNING, SimulationPlan

    return tell.run(LEARNING, SimulationPlan(full, seed))


def routing(
    tell: Drawn,
    full: bool = option(False, "Ten times the requests: some minutes."),
    seed: int = option(1, "Of the simulation."),
) -> int:
    """All routing policies in all scenarios, simulated, beside one that knows the future."""
    from bench.simulations import ROUTING, SimulationPlan

    return tell.run(ROUTING, SimulationPlan(full, seed))


def failover(
    trials: int = option(10, "Per scenario.", min=1),
    scenarios: str = option("", "Names, with commas; all when empty."),
    servers: int = option(1, "3: the scenarios of a cluster, whose servers are lost."),
    json: Json = False,
) -> int:
    """How long a takeover lasts and what is lost: nodes killed, hung, cut off, drained."""
    from bench.faults.failover import FAILOVER, FailoverPlan

    return FAILOVER.run(FailoverPlan(trials, _words(scenarios), servers), json)


def overload(
    seconds: float = option(30.0, "How long the overload lasts.", min=1),
    factor: float = option(3.0, "Offered load, in capacities.", min=1),
    budget: str = option("100ms", "Time for a request."),
    json: Json = False,
) -> int:
    """Goodput, refusals and recovery at three times the capacity."""
    from bench.cost.overload import OVERLOAD, OverloadPlan
    from nodes.console import duration

    return OVERLOAD.run(OverloadPlan(seconds, factor, duration(budget)), json)


def chaos(
    seed: int = option(1, "Of the faults: a seed plays the same ones."),
    rate: float = option(60.0, "Requests a second.", min=0.1),
    every: str = option("1.5s", "Time between two faults."),
    seconds: float = option(60.0, "How long the load lasts.", min=1),
    budget: str = option("5s", "Time for a request."),
    nodes_per_stage: int = option(1, "Beside a fallback.", min=1, max=8),
    model: str = option("digits", "digits, or an ONNX file."),
    server: bool = option(False, "The server is a victim too."),
    at_least: float = option(0.0, "Exit 1 when a smaller share is answered.", min=0, max=1),
    json: Json = False,
) -> int:
    """Random faults under load: nothing may be wrong, and no request without an outcome."""
    from bench.faults.chaos import CHAOS, ChaosPlan
    from nodes.console import duration

    between, each = duration(every), duration(budget)
    plan = ChaosPlan(seed, rate, between, seconds, each, nodes_per_stage, model, server, at_least)
    return CHAOS.run(plan, json)


def autoscale(
    tell: Drawn,
    rounds: int = option(1, "Of all ways, by turns: 3 minutes each.", min=1),
    objective: str = option("100ms", "Of p99."),
    swing: float = option(0.0, "Instead: so many minutes of a swinging load.", min=0),
    burning: float = option(0.0, "Instead: so many minutes of an objective that is missed.", min=0),
) -> int:
    """Three times the load and two idle devices, beside one fixed device and three."""
    from bench.fleets.autoscaling import AUTOSCALE, AutoscalePlan
    from bench.fleets.burning import BURNING, BurningPlan
    from nodes.console import duration

    if burning:
        return tell.run(BURNING, BurningPlan(burning * 60))
    plan = AutoscalePlan(rounds=rounds, objective=duration(objective), swing=swing)
    return tell.run(AUTOSCALE, plan)


def site(
    tell: Told,
    cut: str = option("60s", "How long the link is away."),
    requests: int = option(1000, "Half of them while it is away.", min=8),
    agents: int = option(4, "Who submit, in turn.", min=1, max=64),
    silent: bool = option(False, "Silent instead of cut."),
    flap: bool = option(False, "Cut for one second of each five instead."),
) -> int:
    """What a site submits while its link to the hub is cut: each answer once, in order, right."""
    from bench.faults.site import SITE_CUT, SitePlan
    from nodes.console import duration

    plan = SitePlan(duration(cut), requests, agents, silent, flap)
    return tell.run(SITE_CUT, plan)


def upgrade(
    tell: Told,
    devices: int = option(6, "Each runs one shard of 3.", min=3, max=64),
    rate: float = option(30.0, "Requests a second.", min=1),
    kills: bool = option(True, "Updaters are killed, and power is cut."),
) -> int:
    """Requests while devices go to good and bad releases of the node software: none lost."""
    from bench.faults.upgrades import UPGRADES, UpgradePlan

    plan = UpgradePlan(devices, rate, kills=kills)
    return tell.run(UPGRADES, plan)


def memory(
    tell: Told,
    model: str = option("digits", "An ONNX file, or digits or resnet50 of this project."),
    stages: int = option(3, "Shards of the model.", min=1, max=16),
    requests: int = option(20, "Requests before the look.", min=1),
) -> int:
    """The memory of `swarm up`, by process and by what it is for (Linux)."""
    from bench.cost.memory import MEMORY, MemoryPlan

    return tell.run(MEMORY, MemoryPlan(model, stages, requests))


def hostile(
    messages: int = option(1_000_000, "Of all parsers together.", min=1),
    seed: int = option(1, "A seed makes the same messages again."),
    targets: str = option("", "Parsers, with commas; all when empty."),
    seconds: float = option(0.0, "At most; 0: until the end.", min=0),
    workers: int = option(2, "Processes at a time.", min=1, max=64),
    keep: str = option("", "A folder for the messages of findings."),
    json: Json = False,
) -> int:
    """Mutated messages against every parser: no crash, no hang, bounded memory, typed errors."""
    from bench.hostile.campaign import TARGETS, HostilePlan
    from bench.hostile.command import HOSTILE

    names = tuple(_known(targets, TARGETS)) if targets else ()
    plan = HostilePlan(messages, seed, names, seconds or float("inf"), workers, keep)
    return HOSTILE.run(plan, json)


def weights(
    tell: Told,
    cases: str = option("digits,resnet50", "digits (its head), resnet50 (a stage's convolutions)."),
    updates: int = option(100, "Weight versions of each case.", min=2),
    every: str = option("500ms", "Time between two updates."),
    rounds: Rounds = 5,
) -> int:
    """New weights under load: what they cost, and whether any answer mixes two versions."""
    from bench.fleets.weight_updates import CASES
    from bench.fleets.weights import WEIGHTS, WeightsPlan
    from nodes.console import duration

    names = tuple(_known(cases, CASES))
    plan = WeightsPlan(names, updates, duration(every), min(rounds, updates))
    return tell.run(WEIGHTS, plan)


def links(
    tell: Told,
    full: bool = option(False, "5, 20, 100 Mbit/s, round trips of 10 and 50 ms, 0 and 1 % lost."),
    links_: str = option("", "Others: Mbit/s/ms/percent lost, as 20/10/0,5/50/1.", "--links"),
    codecs: str = option(
        "none,i8,i4", "Of features: none, f16, i8, i6, i4. Results: i8 with the last three."
    ),
    requests: int = option(24, "One after the other, and as many four at a time.", min=4),
    congestion: str = option("", "TCP's, of what the far side sends: bbr, cubic, reno."),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """A detector over slow links: first layers at the edge, a stage behind the link, JPEG."""
    from bench.fleets.links import FULL, LINKS, QUICK, LinksPlan, shapes_of
    from swarm.errors import InvalidArgument
    from swarm.wire.codec_choice import MODES

    names = tuple(_known(codecs, MODES))
    try:
        shapes = shapes_of(links_) if links_ else FULL if full else QUICK
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    plan = LinksPlan(shapes, names, requests, requests, congestion=congestion, ultraface=ultraface)
    return tell.run(LINKS, plan)


def rollout(
    tell: Told,
    rate: float = option(100.0, "Requests a second.", min=1.0),
    quiet: float = option(3.0, "Seconds of load alone before each phase, to compare.", min=0.5),
    kills: bool = option(True, "Kill a node in the middle of each phase."),
) -> int:
    """Versions come and go under load, by promotion, canary and shadow: nothing may be lost."""
    from bench.fleets.rollouts import ROLLOUT, RolloutPlan

    return tell.run(ROLLOUT, RolloutPlan(rate, quiet, kills))


def gate(
    tell: Told,
    seeds: str = option("11,12", "Of the clips, with commas."),
    frames: int = option(150, "Of each of twelve clips.", min=2),
    clips: str = option("", "Names of clips, with commas; all when empty."),
    most_skipped: int = option(10, "Frames in a row.", min=0),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What a camera's gate skips, and how often the result that it repeats is wrong."""
    from bench.perception.clips import CLIPS
    from bench.perception.gate import GATE, GatePlan

    names = tuple(_known(clips, CLIPS) if clips else CLIPS)
    plan = GatePlan(tuple(numbers_of(seeds, "--seeds")), names, frames, most_skipped, ultraface)
    return tell.run(GATE, plan)


def crops(
    tell: Told,
    cards: int = option(32, "Shown one after the other.", min=2, max=32),
    noise: float = option(3.0, "Of a pixel, of 255.", min=0),
    tremble: float = option(1.0, "Of a box's sides, in pixels.", min=0),
) -> int:
    """How often an object that a camera sees keeps its answer, and how often that is wrong."""
    from bench.perception.crops import CROPS, CropsPlan

    return tell.run(CROPS, CropsPlan(cards, noise, tremble))


def mask(
    tell: Told,
    frames: int = option(3000, "That pass the door.", min=1),
    seed: int = option(21, "Of the clips."),
    faces: int = option(100, "People; 0: no such part.", min=0, max=100),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What leaves a camera with a mask: faces that stay, by two other detectors, too."""
    from bench.perception.mask import MASK, MaskPlan

    plan = MaskPlan(frames, seed=seed, faces=faces, ultraface=ultraface)
    return tell.run(MASK, plan)


def cameras(
    tell: Told,
    frames: int = option(300, "That the camera sends for each way.", min=90),
    rounds: Rounds = 1,
    protocols: str = option("udp,rtsp", "udp, rtsp."),
    core: bool = option(False, "Instead: frames/s a core, by what edges send it."),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """How old a camera's frame is at its result, beside an OpenCV loop in one process."""
    from bench.perception.cameras import CAMERAS, CamerasPlan
    from bench.perception.core_cameras import CORE, CorePlan

    if core:
        return tell.run(CORE, CorePlan(rounds=rounds, ultraface=ultraface))
    names = tuple(_known(protocols, ("udp", "rtsp")))
    plan = CamerasPlan(frames, rounds, names, ultraface=ultraface)
    return tell.run(CAMERAS, plan)


def guard(
    tell: Told,
    seconds: int = option(7200, "Of each room's day.", min=120),
    seeds: str = option("31,32", "Of the rooms, with commas."),
    warm_up: int = option(225, "Frames that are learned.", min=16),
    ultraface: str = option("", "The detector's ONNX file or folder."),
) -> int:
    """What a guard takes for strange: false alarms of a day, and 19 ways to spoil a picture."""
    from bench.perception.guard import GUARD, GuardPlan

    plan = GuardPlan(seconds, tuple(numbers_of(seeds, "--seeds")), warm_up, ultraface)
    return tell.run(GUARD, plan)


def plan(
    tell: Told,
    model: str = option("mobilenet", "mobilenet, resnet50."),
    links_: str = option("", "Mbit/s/ms/percent lost, as 20/10/0,5/50/0.", "--links"),
    rounds: int = option(9, "Requests of each way, in turns.", min=2),
    codec: str = option("auto", "none, or auto, which loses nothing."),
) -> int:
    """Where to compute: every cut on nine links, and an edge's choice beside the best (root)."""
    from bench.fleets.links import shapes_of
    from bench.fleets.placing import LINKS, MODELS, PLAN, PlacePlan
    from swarm.errors import InvalidArgument

    (name,) = _known(model, tuple(MODELS))
    try:
        shapes = shapes_of(links_) if links_ else LINKS
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    return tell.run(PLAN, PlacePlan(name, rounds, shapes, codec))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _known(text: str, known: Iterable[str]) -> list[str]:
    """At least one word, all of them known."""
    words = _words(text)
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        raise typer.BadParameter(f"{unknown}: choose of {', '.join(known)}")
    return words


def _delivery_mode(name: str) -> str:
    from swarm.requests.request import DELIVERY_MODES

    mode = DELIVERY_MODES.get(name)
    if mode is None:
        raise typer.BadParameter(f"{name!r}: it is durable or fast", param_hint="--delivery")
    return mode


def numbers_of(text: str, hint: str) -> list[int]:
    """Positive integers, separated by commas."""
    try:
        values = [int(part) for part in _words(text)]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise typer.BadParameter(f"{text!r}: numbers from 1, with commas", param_hint=hint)
    return values


COMMANDS = (
    hop,
    throughput,
    gateway,
    generate,
    oip,
    peers,
    scale,
    failover,
    chaos,
    autoscale,
    site,
    upgrade,
    hostile,
    overload,
    memory,
    gossip,
    learning,
    routing,
    compare,
    regression,
    weights,
    links,
    plan,
    rollout,
    gate,
    crops,
    mask,
    guard,
    cameras,
)


def add_commands(app: typer.Typer) -> None:
    """Add all benchmark commands to `swarm bench`, and those of `bench.<feature>.feature`: one of a
    name that is there takes its place."""
    app.callback()(reach_benchmarks)
    known = {each.__name__: each for each in COMMANDS}
    for feature in features():
        known |= {each.__name__: each for each in feature.commands}
    for command in known.values():
        app.command()(as_command(command))
