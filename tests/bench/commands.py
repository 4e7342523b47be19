"""`swarm bench …`: the commands and their options.

A command imports its benchmark when it runs: nothing else in the programs imports `bench`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.feature import features
from nodes.cli.bench import reach_benchmarks
from nodes.cli.command import as_command, option
from nodes.cli.options import Json
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
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
    names = known_words(models, PIPELINES)
    levels = numbers_of(concurrency, "--concurrency")
    plan = ThroughputPlan(names, levels, rounds, seconds, stages, delivery, ultraface)
    return tell.run(THROUGHPUT, plan)


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

    plan = PeersPlan(words_of(only), rounds, words_of(kinds), environment)
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

    return FAILOVER.run(FailoverPlan(trials, words_of(scenarios), servers), json)


def attain(
    tell: Told,
    rate: float = option(200.0, "Requests a second, due evenly.", min=1),
    within: str = option("20ms", "In time is what is answered within this of its moment."),
    seconds: float = option(30.0, "Length of each phase.", min=1),
    kill: bool = option(False, "Also while nodes are killed with SIGKILL, and brought back."),
    rollout: bool = option(False, "Also while a new version is pushed and promoted."),
    at_least: float = option(0.0, "Exit 1 where fewer percent are in time.", min=0, max=100),
) -> int:
    """The share that is answered in time, and rightly, at a fixed rate."""
    from bench.faults.attain import ATTAIN, AttainPlan
    from nodes.console import duration

    return tell.run(ATTAIN, AttainPlan(rate, duration(within), seconds, kill, rollout, at_least))


def overload(
    seconds: float = option(30.0, "How long the overload lasts, without --high.", min=1),
    factor: float = option(3.0, "Offered load, in capacities.", min=1),
    budget: str = option("100ms", "Time for a request, without --high."),
    high: float = option(
        0.0, "Percent of high priority, beside a quiet phase and one without.", min=0, max=50
    ),
    runs: str = option("20,20,20", "With --high: milliseconds of a run of each stage."),
    json: Json = False,
) -> int:
    """Goodput, refusals and recovery at three times the capacity, or what high requests feel."""
    from bench.cost.overload import OVERLOAD, OverloadPlan
    from nodes.console import duration

    if high:
        from bench.cost.priorities import PRIORITIES, PrioritiesPlan

        try:
            each = tuple(float(run) / 1e3 for run in words_of(runs))
        except ValueError:
            each = ()
        if not each or not all(0 < run < 1 for run in each):
            raise InvalidArgument("--runs is milliseconds below 1000, with commas: 20,10,10")
        return PRIORITIES.run(PrioritiesPlan(high, factor, runs=each), json)
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

    names = tuple(known_words(targets, TARGETS)) if targets else ()
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

    names = tuple(known_words(cases, CASES))
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

    names = tuple(known_words(codecs, MODES))
    try:
        shapes = shapes_of(links_) if links_ else FULL if full else QUICK
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    plan = LinksPlan(shapes, names, requests, requests, congestion=congestion, ultraface=ultraface)
    return tell.run(LINKS, plan)


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

    (name,) = known_words(model, tuple(MODELS))
    try:
        shapes = shapes_of(links_) if links_ else LINKS
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    return tell.run(PLAN, PlacePlan(name, rounds, shapes, codec))


def words_of(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def known_words(text: str, known: Iterable[str]) -> list[str]:
    """At least one word, all of them known."""
    words = words_of(text)
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
        values = [int(part) for part in words_of(text)]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise typer.BadParameter(f"{text!r}: numbers from 1, with commas", param_hint=hint)
    return values


COMMANDS = (
    hop,
    throughput,
    peers,
    scale,
    failover,
    attain,
    chaos,
    autoscale,
    hostile,
    overload,
    memory,
    gossip,
    routing,
    compare,
    regression,
    weights,
    links,
    plan,
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
