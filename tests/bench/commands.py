"""`swarm bench …`: the commands and their options.

A command imports its benchmark when it runs: nothing else in the programs imports `bench`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nodes.cli.bench import reach_benchmarks

if TYPE_CHECKING:
    from bench.fleets.links import Shape

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
Chart = Annotated[str, typer.Option(help="Draw the result into this image (needs matplotlib).")]
Output = Annotated[str, typer.Option("-o", "--output", help="Write the JSON document here.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds.")]
Delivery = Annotated[str, typer.Option(help="durable (lanes) or fast (nothing is stored).")]

HOP_SIZES = "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,2MiB,4MiB,8MB"
TRUST_SIZES = "4KiB,1MiB"
# The largest is decimal: with its header the message must fit into the 8 MiB above which
# nats-server warns.
MOST_REAL_NODES = 200  # of `scale`; of more all but twenty are imitated


def hop(
    sizes: Annotated[str, typer.Option(help="Bytes of features, separated by commas.")] = HOP_SIZES,
    requests: Annotated[int, typer.Option(min=1, help="In one slice of one contender.")] = 150,
    rounds: Rounds = 5,
    delivery: Delivery = "durable",
    trust: Annotated[
        bool,
        typer.Option(
            "--trust", help="Instead: what users, TLS and encryption at rest cost; 4KiB and 1MiB."
        ),
    ] = False,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
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
    raise typer.Exit((TRUST if trust else HOP).run(plan, json_, chart, output))


def throughput(
    models: Annotated[
        str, typer.Option(help="digits, resnet50, resnet50-small, ultraface.")
    ] = "digits,resnet50,ultraface",
    concurrency: Annotated[str, typer.Option(help="Requests at once.")] = "1,2,4,8,16,32,64",
    rounds: Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of a slice.")] = 2.0,
    stages: Annotated[int, typer.Option(min=1, max=16, help="Processes of a pipeline.")] = 3,
    delivery: Delivery = "durable",
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """What a pipeline yields, beside the same cores without a mesh."""
    from bench.cost.pipelines import PIPELINES
    from bench.cost.throughput import THROUGHPUT, ThroughputPlan

    delivery = _delivery_mode(delivery)
    names = _known(models, PIPELINES)
    levels = _numbers(concurrency, "--concurrency")
    plan = ThroughputPlan(names, levels, rounds, seconds, stages, delivery, ultraface)
    raise typer.Exit(THROUGHPUT.run(plan, json_, chart, output))


def gateway(
    requests: Annotated[int, typer.Option(min=8, help="In one slice of one way.")] = 300,
    rounds: Rounds = 5,
    faults: Annotated[
        int,
        typer.Option(
            min=0,
            help="Instead: what tritonclient sees of kill -9 and restarts, so many times each.",
        ),
    ] = 0,
    rivals: Annotated[
        bool,
        typer.Option("--rivals", help="Beside mosec and Ray Serve, too: installs half a gigabyte."),
    ] = False,
    crowd: Annotated[
        bool,
        typer.Option(
            "--crowd", help="Instead: memory and errors under 100 connections; slow senders."
        ),
    ] = False,
    json_: Json = False,
    output: Output = "",
) -> None:
    """What a gateway's clients wait longer than a client of the mesh; beside bare uvicorn."""
    if faults:
        from bench.faults.gateway_faults import FAULTS_SEEN, FaultsPlan

        raise typer.Exit(FAULTS_SEEN.run(FaultsPlan(trials=faults), json_, output=output))
    if crowd:
        from bench.cost.gateway_crowd import CROWD, CrowdPlan

        raise typer.Exit(CROWD.run(CrowdPlan(rounds=rounds), json_, output=output))
    from bench.cost.gateway import GATEWAY, GatewayPlan

    raise typer.Exit(
        GATEWAY.run(GatewayPlan(requests, rounds, rivals=rivals), json_, output=output)
    )


def generate(
    sessions: Annotated[str, typer.Option(help="At a time, with commas.")] = "1,4,16",
    tokens: Annotated[int, typer.Option(min=2, max=400, help="Of each answer.")] = 200,
    rounds: Rounds = 5,
    kills: Annotated[
        int,
        typer.Option(
            min=0, help="Instead: kill -9 of each stage, so often, at random moments of 8 sessions."
        ),
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Of --kills: by turns with a fallback that follows.")
    ] = False,
    drafts: Annotated[
        int,
        typer.Option(
            min=0,
            max=16,
            help="Instead: what so many drafts a round gain the toy, also behind --link; with "
            "--kills, of single sessions.",
        ),
    ] = 0,
    draft_model: Annotated[
        str, typer.Option(help="A toy that guesses them; empty for none.")
    ] = "toy-draft",
    flood: Annotated[
        bool,
        typer.Option("--flood", help="Instead: another client opens 500 chats, all the time."),
    ] = False,
    prefix: Annotated[
        bool,
        typer.Option("--prefix", help="Instead: the first token of prompts that begin alike."),
    ] = False,
    replicas: Annotated[int, typer.Option(min=1, help="Nodes of each stage, of --prefix.")] = 1,
    many: Annotated[
        int, typer.Option(min=0, help="Instead: the nodes' memory behind so many sessions.")
    ] = 0,
    link: Annotated[
        str, typer.Option(help="Instead: stage 2 behind a link of Mbit/s/ms/percent lost (root).")
    ] = "",
    memory: Annotated[
        int,
        typer.Option(help="Instead: three nodes with a Qwen2-0.5B of 4 or 32 bits a weight."),
    ] = 0,
    json_: Json = False,
    output: Output = "",
) -> None:
    """Tokens of a language model in three shards, beside one process that holds all of it."""
    if kills:
        from bench.generation.killed_stages import KILLED, KillPlan

        plan = KillPlan(kills, tokens=tokens, follow=follow)
        if drafts:  # nothing is guessed beside other sessions
            plan = replace(plan, sessions=1, drafts=drafts)
        raise typer.Exit(KILLED.run(plan, json_, output=output))
    if flood:
        from bench.generation.flood import FLOOD, FloodPlan

        raise typer.Exit(FLOOD.run(FloodPlan(rounds=rounds), json_, output=output))
    if prefix:
        from bench.generation.prefixes import PREFIXES, PrefixPlan

        raise typer.Exit(
            PREFIXES.run(PrefixPlan(rounds=rounds, replicas=replicas), json_, output=output)
        )
    if many:
        from bench.generation.memory import MEMORY, MemoryPlan

        raise typer.Exit(MEMORY.run(MemoryPlan(many), json_, output=output))
    at_once = tuple(_numbers(sessions, "--sessions"))
    shape = _link_shape(link) if link else None
    if drafts:
        from bench.generation.drafts import DRAFTS, DraftPlan

        guessed = DraftPlan(drafts, draft_model, tokens, rounds, shape)
        raise typer.Exit(DRAFTS.run(guessed, json_, output=output))
    if shape is not None:
        from bench.generation.link import LINKED, LinkPlan

        raise typer.Exit(LINKED.run(LinkPlan(shape, at_once, tokens, rounds), json_, output=output))
    if memory:
        from bench.generation.resident import RESIDENT, ResidentPlan

        if memory not in (4, 32):
            raise typer.BadParameter("4 or 32 bits a weight", param_hint="--memory")
        bits: Literal[4, 32] = 4 if memory == 4 else 32
        raise typer.Exit(RESIDENT.run(ResidentPlan(bits), json_, output=output))
    from bench.generation.generate import GENERATE, GeneratePlan

    raise typer.Exit(GENERATE.run(GeneratePlan(at_once, tokens, rounds), json_, output=output))


def _link_shape(text: str) -> Shape:
    from bench.fleets.links import shapes_of
    from swarm.errors import InvalidArgument

    try:
        (shape,) = shapes_of(text)
    except (InvalidArgument, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--link") from None
    return shape


def oip(
    examples: Annotated[Path, typer.Option(help="A folder with Triton's simple_*.py.")],
    json_: Json = False,
    output: Output = "",
) -> None:
    """Triton's client examples, unmodified, against a gateway: their exit codes."""
    from bench.conformance import CONFORMANCE, ConformancePlan

    raise typer.Exit(CONFORMANCE.run(ConformancePlan(examples), json_, output=output))


def scale(
    nodes: Annotated[
        str,
        typer.Option(
            help="Nodes; empty: no such sweep. A number over 200 alone: twenty real nodes among "
            "imitated ones, beside a mesh of five."
        ),
    ] = "3,12,25,50,100",
    models: Annotated[str, typer.Option(help="Models, three nodes each.")] = "1,5,10,25,50",
    agents: Annotated[str, typer.Option(help="Clients asking at once.")] = "1,10,100,300,1000",
    requests: Annotated[int, typer.Option(min=1, help="At each point.")] = 2000,
    hosts: Annotated[int, typer.Option(min=1, help="Processes the nodes are spread over.")] = 2,
    rounds: Rounds = 1,
    trials: Annotated[int, typer.Option(min=1, help="Kills in a large fleet, and in five.")] = 5,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """What grows with nodes, models and agents; the laws in words."""
    counts = _numbers(nodes, "--nodes") if nodes else []
    if max(counts, default=0) > MOST_REAL_NODES:
        if len(counts) > 1:
            raise typer.BadParameter(f"--nodes: more than {MOST_REAL_NODES} nodes stand alone")
        from bench.fleets.large_fleet import LARGE_FLEET, LargeFleetPlan

        large = LargeFleetPlan(counts[0], trials=trials)
        raise typer.Exit(LARGE_FLEET.run(large, json_, output=output))
    from bench.fleets.scale import SCALE, ScalePlan
    from bench.fleets.scale_point import Point

    plan = ScalePlan(
        counts,
        _numbers(models, "--models") if models else [],
        _numbers(agents, "--agents") if agents else [],
        rounds,
        Point(requests=requests, hosts=hosts),
    )
    raise typer.Exit(SCALE.run(plan, json_, chart, output))


def peers(
    only: Annotated[str, typer.Option(help="Contenders, with commas; all when empty.")] = "",
    rounds: Rounds = 3,
    kinds: Annotated[
        str, typer.Option(help="tiny (4 KB features), large (0.8-1.6 MB), resnet50.")
    ] = "tiny,large,resnet50",
    environment: Annotated[
        str, typer.Option(help="Where the peers are installed; in the user's cache when empty.")
    ] = "",
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """The mesh beside what users would pick; installs them into an environment of their own."""
    from bench.rivals.peers import PEERS, PeersPlan

    plan = PeersPlan(_words(only), rounds, _words(kinds), environment)
    raise typer.Exit(PEERS.run(plan, json_, chart, output))


def compare(
    before: Annotated[str, typer.Argument(help="A JSON document; `baseline`: the stored one.")],
    after: Annotated[str, typer.Argument(help="Another one of the same benchmark.")],
    fail_above: Annotated[
        float, typer.Option(help="Exit 1 when a ratio to a floor got so many times worse.")
    ] = 0.0,
    all_: Annotated[bool, typer.Option("--all", help="Show what did not change, too.")] = False,
    json_: Json = False,
) -> None:
    """What changed between two results, with the spread of their rounds."""
    from bench.report.compare import BASELINE, run_compare

    first = str(BASELINE) if before == "baseline" and not Path(before).exists() else before
    raise typer.Exit(run_compare(first, after, fail_above, json_, all_))


def regression(
    limit: Annotated[
        float, typer.Option(min=0.0, help="Most of the ratio to the floor; 0: the gate's own.")
    ] = 0.0,
    attempts: Annotated[int, typer.Option(min=1, max=20, help="The best one counts.")] = 3,
    json_: Json = False,
) -> None:
    """The gate of CI: a 4 KiB hop by `swarm up` beside raw JetStream; exit 1 above the limit."""
    from bench.cost.regression import MOST_RATIO, REGRESSION, RegressionPlan

    raise typer.Exit(REGRESSION.run(RegressionPlan(limit or MOST_RATIO, attempts), json_))


def gossip(
    full: Annotated[bool, typer.Option(help="Up to 2000 nodes: some minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """What the gossip achieves, simulated: spread, traffic, crashes, splits."""
    from bench.simulations import GOSSIP, SimulationPlan

    raise typer.Exit(GOSSIP.run(SimulationPlan(full, seed), json_, chart, output))


def learning(
    full: Annotated[bool, typer.Option(help="Up to 256 nodes: a quarter of an hour.")] = False,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """What a fleet learns by sparse deltas, simulated, beside a parameter server's bytes."""
    from bench.simulations import LEARNING, SimulationPlan

    raise typer.Exit(LEARNING.run(SimulationPlan(full, seed), json_, chart, output))


def churn(
    devices: Annotated[int, typer.Option(min=2, max=2000, help="Nodes of role auto.")] = 40,
    minutes: Annotated[float, typer.Option(min=1.0, help="Of virtual time.")] = 20.0,
    pace: Annotated[float, typer.Option(min=0.1, help="Times the usual churn a device.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    json_: Json = False,
    output: Output = "",
) -> None:
    """Plans of a fleet that changes all the time, simulated: moves, slots, what a look costs."""
    from bench.simulations import CHURN, ChurnPlan

    raise typer.Exit(CHURN.run(ChurnPlan(devices, minutes, pace, seed), json_, output=output))


def routing(
    full: Annotated[bool, typer.Option(help="Ten times the requests: some minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Of the simulation.")] = 1,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """All routing policies in all scenarios, simulated, beside one that knows the future."""
    from bench.simulations import ROUTING, SimulationPlan

    raise typer.Exit(ROUTING.run(SimulationPlan(full, seed), json_, chart, output))


def failover(
    trials: Annotated[int, typer.Option(min=1, help="Per scenario.")] = 10,
    scenarios: Annotated[str, typer.Option(help="Names, with commas; all when empty.")] = "",
    servers: Annotated[
        int, typer.Option(help="3: the scenarios of a cluster, whose servers are lost.")
    ] = 1,
    json_: Json = False,
) -> None:
    """How long a takeover lasts and what is lost: nodes killed, hung, cut off, drained."""
    from bench.faults.failover import FAILOVER, FailoverPlan

    raise typer.Exit(FAILOVER.run(FailoverPlan(trials, _words(scenarios), servers), json_))


def overload(
    seconds: Annotated[float, typer.Option(min=1, help="How long the overload lasts.")] = 30.0,
    factor: Annotated[float, typer.Option(min=1, help="Offered load, in capacities.")] = 3.0,
    budget: Annotated[str, typer.Option(help="Time for a request.")] = "100ms",
    json_: Json = False,
) -> None:
    """Goodput, refusals and recovery at three times the capacity."""
    from bench.cost.overload import OVERLOAD, OverloadPlan
    from nodes.console import duration

    raise typer.Exit(OVERLOAD.run(OverloadPlan(seconds, factor, duration(budget)), json_))


def chaos(
    seed: Annotated[int, typer.Option(help="Of the faults: a seed plays the same ones.")] = 1,
    rate: Annotated[float, typer.Option(min=0.1, help="Requests a second.")] = 60.0,
    every: Annotated[str, typer.Option(help="Time between two faults.")] = "1.5s",
    seconds: Annotated[float, typer.Option(min=1, help="How long the load lasts.")] = 60.0,
    budget: Annotated[str, typer.Option(help="Time for a request.")] = "5s",
    nodes_per_stage: Annotated[int, typer.Option(min=1, max=8, help="Beside a fallback.")] = 1,
    model: Annotated[str, typer.Option(help="digits, or an ONNX file.")] = "digits",
    server: Annotated[bool, typer.Option("--server", help="The server is a victim too.")] = False,
    at_least: Annotated[
        float, typer.Option(min=0, max=1, help="Exit 1 when a smaller share is answered.")
    ] = 0.0,
    json_: Json = False,
) -> None:
    """Random faults under load: nothing may be wrong, and no request without an outcome."""
    from bench.faults.chaos import CHAOS, ChaosPlan
    from nodes.console import duration

    between, each = duration(every), duration(budget)
    plan = ChaosPlan(seed, rate, between, seconds, each, nodes_per_stage, model, server, at_least)
    raise typer.Exit(CHAOS.run(plan, json_))


def auto(
    nodes: Annotated[
        int, typer.Option(min=0, max=32, help="Nodes of role auto; 0: 6, with fade 4.")
    ] = 0,
    memory: Annotated[int, typer.Option(help="Megabytes that each gives to stages.")] = 60,
    rate: Annotated[
        float, typer.Option(min=0.0, help="Requests a second; 0: 30, cut: 15, fade: 2.")
    ] = 0.0,
    events: Annotated[
        str,
        typer.Option(
            help="In this order; also kill-one, pause-two, slow (a quarter of a core), fade; or "
            "cut: the network, in two halves, for 30 s."
        ),
    ] = "join,leave,kill-two",
    draw: Annotated[int, typer.Option(help="Instead: so many events by chance.")] = 0,
    seed: Annotated[int, typer.Option(help="Of --draw.")] = 1,
    json_: Json = False,
    output: Output = "",
) -> None:
    """Nodes that share stages by themselves: one joins, one leaves, two die, under load."""
    from bench.fleets.auto import AUTO, AutoPlan, drawn
    from bench.fleets.cutting import CUT, CutPlan

    if events == "cut":
        raise typer.Exit(CUT.run(CutPlan(nodes or 6, memory, rate or 15.0), json_, output=output))
    nodes = nodes or (4 if "fade" in events else 6)
    happen = drawn(seed, draw, nodes) if draw else tuple(events.split(","))
    rate = rate or (2.0 if "fade" in happen else 30.0)
    plan = AutoPlan(nodes, memory=memory, rate=rate, events=happen)
    raise typer.Exit(AUTO.run(plan, json_, output=output))


def autoscale(
    rounds: Annotated[int, typer.Option(min=1, help="Of all ways, by turns: 3 minutes each.")] = 1,
    objective: Annotated[str, typer.Option(help="Of p99.")] = "100ms",
    swing: Annotated[
        float, typer.Option(min=0, help="Instead: so many minutes of a swinging load.")
    ] = 0.0,
    burning: Annotated[
        float, typer.Option(min=0, help="Instead: so many minutes of an objective that is missed.")
    ] = 0.0,
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """Three times the load and two idle devices, beside one fixed device and three."""
    from bench.fleets.autoscaling import AUTOSCALE, AutoscalePlan
    from bench.fleets.burning import BURNING, BurningPlan
    from nodes.console import duration

    if burning:
        raise typer.Exit(BURNING.run(BurningPlan(burning * 60), json_, output=output))
    plan = AutoscalePlan(rounds=rounds, objective=duration(objective), swing=swing)
    raise typer.Exit(AUTOSCALE.run(plan, json_, chart, output))


def site(
    cut: Annotated[str, typer.Option(help="How long the link is away.")] = "60s",
    requests: Annotated[int, typer.Option(min=8, help="Half of them while it is away.")] = 1000,
    agents: Annotated[int, typer.Option(min=1, max=64, help="Who submit, in turn.")] = 4,
    silent: Annotated[bool, typer.Option("--silent", help="Silent instead of cut.")] = False,
    flap: Annotated[
        bool, typer.Option("--flap", help="Cut for one second of each five instead.")
    ] = False,
    json_: Json = False,
    output: Output = "",
) -> None:
    """What a site submits while its link to the hub is cut: each answer once, in order, right."""
    from bench.faults.site import SITE_CUT, SitePlan
    from nodes.console import duration

    plan = SitePlan(duration(cut), requests, agents, silent, flap)
    raise typer.Exit(SITE_CUT.run(plan, json_, output=output))


def upgrade(
    devices: Annotated[int, typer.Option(min=3, max=64, help="Each runs one shard of 3.")] = 6,
    rate: Annotated[float, typer.Option(min=1, help="Requests a second.")] = 30.0,
    kills: Annotated[bool, typer.Option(help="Updaters are killed, and power is cut.")] = True,
    json_: Json = False,
    output: Output = "",
) -> None:
    """Requests while devices go to good and bad releases of the node software: none lost."""
    from bench.faults.upgrades import UPGRADES, UpgradePlan

    plan = UpgradePlan(devices, rate, kills=kills)
    raise typer.Exit(UPGRADES.run(plan, json_, output=output))


def memory(
    model: Annotated[
        str, typer.Option(help="An ONNX file, or digits or resnet50 of this project.")
    ] = "digits",
    stages: Annotated[int, typer.Option(min=1, max=16, help="Shards of the model.")] = 3,
    requests: Annotated[int, typer.Option(min=1, help="Requests before the look.")] = 20,
    json_: Json = False,
    output: Output = "",
) -> None:
    """The memory of `swarm up`, by process and by what it is for (Linux)."""
    from bench.cost.memory import MEMORY, MemoryPlan

    raise typer.Exit(MEMORY.run(MemoryPlan(model, stages, requests), json_, output=output))


def hostile(
    messages: Annotated[int, typer.Option(min=1, help="Of all parsers together.")] = 1_000_000,
    seed: Annotated[int, typer.Option(help="A seed makes the same messages again.")] = 1,
    targets: Annotated[str, typer.Option(help="Parsers, with commas; all when empty.")] = "",
    seconds: Annotated[float, typer.Option(min=0, help="At most; 0: until the end.")] = 0.0,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes at a time.")] = 2,
    keep: Annotated[str, typer.Option(help="A folder for the messages of findings.")] = "",
    json_: Json = False,
) -> None:
    """Mutated messages against every parser: no crash, no hang, bounded memory, typed errors."""
    from bench.hostile.campaign import TARGETS, HostilePlan
    from bench.hostile.command import HOSTILE

    names = tuple(_known(targets, TARGETS)) if targets else ()
    plan = HostilePlan(messages, seed, names, seconds or float("inf"), workers, keep)
    raise typer.Exit(HOSTILE.run(plan, json_))


def weights(
    cases: Annotated[
        str, typer.Option(help="digits (its head), resnet50 (a stage's convolutions).")
    ] = "digits,resnet50",
    updates: Annotated[int, typer.Option(min=2, help="Weight versions of each case.")] = 100,
    every: Annotated[str, typer.Option(help="Time between two updates.")] = "500ms",
    rounds: Rounds = 5,
    json_: Json = False,
    output: Output = "",
) -> None:
    """New weights under load: what they cost, and whether any answer mixes two versions."""
    from bench.fleets.weight_updates import CASES
    from bench.fleets.weights import WEIGHTS, WeightsPlan
    from nodes.console import duration

    names = tuple(_known(cases, CASES))
    plan = WeightsPlan(names, updates, duration(every), min(rounds, updates))
    raise typer.Exit(WEIGHTS.run(plan, json_, output=output))


def links(
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="5, 20, 100 Mbit/s, round trips of 10 and 50 ms, 0 and 1 % lost."
        ),
    ] = False,
    links_: Annotated[
        str, typer.Option("--links", help="Others: Mbit/s/ms/percent lost, as 20/10/0,5/50/1.")
    ] = "",
    codecs: Annotated[
        str,
        typer.Option(help="Of features: none, f16, i8, i6, i4. Results: i8 with the last three."),
    ] = "none,i8,i4",
    requests: Annotated[
        int, typer.Option(min=4, help="One after the other, and as many four at a time.")
    ] = 24,
    congestion: Annotated[
        str, typer.Option(help="TCP's, of what the far side sends: bbr, cubic, reno.")
    ] = "",
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
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
    raise typer.Exit(LINKS.run(plan, json_, output=output))


def rollout(
    rate: Annotated[float, typer.Option(min=1.0, help="Requests a second.")] = 100.0,
    quiet: Annotated[
        float, typer.Option(min=0.5, help="Seconds of load alone before each phase, to compare.")
    ] = 3.0,
    kills: Annotated[bool, typer.Option(help="Kill a node in the middle of each phase.")] = True,
    json_: Json = False,
    output: Output = "",
) -> None:
    """Versions come and go under load, by promotion, canary and shadow: nothing may be lost."""
    from bench.fleets.rollouts import ROLLOUT, RolloutPlan

    raise typer.Exit(ROLLOUT.run(RolloutPlan(rate, quiet, kills), json_, output=output))


def gate(
    seeds: Annotated[str, typer.Option(help="Of the clips, with commas.")] = "11,12",
    frames: Annotated[int, typer.Option(min=2, help="Of each of twelve clips.")] = 150,
    clips: Annotated[str, typer.Option(help="Names of clips, with commas; all when empty.")] = "",
    most_skipped: Annotated[int, typer.Option(min=0, help="Frames in a row.")] = 10,
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
    """What a camera's gate skips, and how often the result that it repeats is wrong."""
    from bench.perception.clips import CLIPS
    from bench.perception.gate import GATE, GatePlan

    names = tuple(_known(clips, CLIPS) if clips else CLIPS)
    plan = GatePlan(tuple(_numbers(seeds, "--seeds")), names, frames, most_skipped, ultraface)
    raise typer.Exit(GATE.run(plan, json_, output=output))


def crops(
    cards: Annotated[int, typer.Option(min=2, max=32, help="Shown one after the other.")] = 32,
    noise: Annotated[float, typer.Option(min=0, help="Of a pixel, of 255.")] = 3.0,
    tremble: Annotated[float, typer.Option(min=0, help="Of a box's sides, in pixels.")] = 1.0,
    json_: Json = False,
    output: Output = "",
) -> None:
    """How often an object that a camera sees keeps its answer, and how often that is wrong."""
    from bench.perception.crops import CROPS, CropsPlan

    raise typer.Exit(CROPS.run(CropsPlan(cards, noise, tremble), json_, output=output))


def mask(
    frames: Annotated[int, typer.Option(min=1, help="That pass the door.")] = 3000,
    seed: Annotated[int, typer.Option(help="Of the clips.")] = 21,
    faces: Annotated[int, typer.Option(min=0, max=100, help="People; 0: no such part.")] = 100,
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
    """What leaves a camera with a mask: faces that stay, by two other detectors, too."""
    from bench.perception.mask import MASK, MaskPlan

    plan = MaskPlan(frames, seed=seed, faces=faces, ultraface=ultraface)
    raise typer.Exit(MASK.run(plan, json_, output=output))


def cameras(
    frames: Annotated[int, typer.Option(min=90, help="That the camera sends for each way.")] = 300,
    rounds: Rounds = 1,
    protocols: Annotated[str, typer.Option(help="udp, rtsp.")] = "udp,rtsp",
    core: Annotated[
        bool, typer.Option("--core", help="Instead: frames/s a core, by what edges send it.")
    ] = False,
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
    """How old a camera's frame is at its result, beside an OpenCV loop in one process."""
    from bench.perception.cameras import CAMERAS, CamerasPlan
    from bench.perception.core_cameras import CORE, CorePlan

    if core:
        raise typer.Exit(
            CORE.run(CorePlan(rounds=rounds, ultraface=ultraface), json_, output=output)
        )
    names = tuple(_known(protocols, ("udp", "rtsp")))
    plan = CamerasPlan(frames, rounds, names, ultraface=ultraface)
    raise typer.Exit(CAMERAS.run(plan, json_, output=output))


def guard(
    seconds: Annotated[int, typer.Option(min=120, help="Of each room's day.")] = 7200,
    seeds: Annotated[str, typer.Option(help="Of the rooms, with commas.")] = "31,32",
    warm_up: Annotated[int, typer.Option(min=16, help="Frames that are learned.")] = 225,
    ultraface: Annotated[str, typer.Option(help="The detector's ONNX file or folder.")] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
    """What a guard takes for strange: false alarms of a day, and 19 ways to spoil a picture."""
    from bench.perception.guard import GUARD, GuardPlan

    plan = GuardPlan(seconds, tuple(_numbers(seeds, "--seeds")), warm_up, ultraface)
    raise typer.Exit(GUARD.run(plan, json_, output=output))


def plan(
    model: Annotated[str, typer.Option(help="mobilenet, resnet50.")] = "mobilenet",
    links_: Annotated[
        str, typer.Option("--links", help="Mbit/s/ms/percent lost, as 20/10/0,5/50/0.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=2, help="Requests of each way, in turns.")] = 9,
    codec: Annotated[str, typer.Option(help="none, or auto, which loses nothing.")] = "auto",
    predict: Annotated[
        str,
        typer.Option(
            help="Instead: random plans, as 1-20, predicted and measured on parts of a core."
        ),
    ] = "",
    json_: Json = False,
    output: Output = "",
) -> None:
    """Where to compute: every cut on nine links, and an edge's choice beside the best (root)."""
    if predict:
        from bench.fleets.predicting import PREDICTED, PredictPlan

        first, _, last = predict.partition("-")
        numbers = _numbers(f"{first},{last or first}", "--predict")
        raise typer.Exit(PREDICTED.run(PredictPlan(*numbers), json_, output=output))
    from bench.fleets.links import shapes_of
    from bench.fleets.placing import LINKS, MODELS, PLAN, PlacePlan
    from swarm.errors import InvalidArgument

    (name,) = _known(model, tuple(MODELS))
    try:
        shapes = shapes_of(links_) if links_ else LINKS
    except InvalidArgument as error:
        raise typer.BadParameter(str(error)) from None
    raise typer.Exit(PLAN.run(PlacePlan(name, rounds, shapes, codec), json_, output=output))


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


def _numbers(text: str, hint: str) -> list[int]:
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
    auto,
    autoscale,
    site,
    upgrade,
    hostile,
    overload,
    memory,
    gossip,
    learning,
    routing,
    churn,
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
    """Add all benchmark commands to `swarm bench`."""
    app.callback()(reach_benchmarks)
    for command in COMMANDS:
        app.command()(command)
