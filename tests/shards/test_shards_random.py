"""Any graph, cut anywhere, computes the same; the balance is the best there is."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from shard_graphs import he, make, node, same, value, whole

from shards.graph.fuse import fuse
from shards.graph.graph import Graph
from shards.graph.layer_range import extract, layer_range
from shards.graph.source import normalize
from shards.graph.tensor_types import infer_types
from shards.split.balance import balance
from shards.split.check import check_split
from shards.split.profile import run_chain

UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Identity", "Softplus")
BINARY = ("Add", "Mul", "Sub", "Max")
WIDTH = 4


@st.composite
def dags(draw: st.DrawFn) -> ModelProto:
    """Random operators on random earlier tensors, in shuffled order, with random outputs."""
    inputs = [f"in{i}" for i in range(draw(st.integers(1, 3)))]
    known, nodes = list(inputs), []
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    params = {f"w{i}": he(rng, (WIDTH, WIDTH)) for i in range(2)}
    for index in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["unary", "binary", "weight", "split"]))
        out = f"t{index}"
        first = draw(st.sampled_from(known))
        if kind == "unary":
            nodes.append(node(draw(st.sampled_from(UNARY)), [first], [out]))
        elif kind == "binary":
            other = draw(st.sampled_from([*known, "w0"]))
            nodes.append(node(draw(st.sampled_from(BINARY)), [first, other], [out]))
        elif kind == "weight":
            weight = draw(st.sampled_from(["w0", "w1"]))
            nodes.append(node("MatMul", [first, weight], [out]))
        else:
            nodes.append(node("Split", [first], [out, f"{out}b"], axis=1, num_outputs=2))
            nodes.append(node("Concat", [f"{out}b", out], [f"{out}c"], axis=1))
            known.append(f"{out}c")
            continue
        known.append(out)
    made = [name for name in known if name not in inputs]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    nodes = draw(st.permutations(nodes))
    return make(
        nodes,
        [value(name, [WIDTH, WIDTH]) for name in inputs],
        [value(name, None) for name in outputs],
        params,
        opset=18,
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph_cut_anywhere_computes_what_the_whole_computes(data: st.DataObject) -> None:
    model = normalize(data.draw(dags()))
    ordered = Graph.of(model)
    del model.graph.node[:]
    model.graph.node.extend(ordered.constant_nodes.values())
    model.graph.node.extend(ordered.nodes)
    graph = Graph.of(fuse(model))
    positions = st.integers(0, len(graph))
    cuts = sorted(data.draw(st.lists(positions, max_size=4)))
    bounds = [0, *cuts, len(graph)]
    types = infer_types(graph)
    flows = [
        layer_range(graph, a, b, first=i == 0, last=i == len(bounds) - 2)
        for i, (a, b) in enumerate(pairwise(bounds))
    ]
    parts = [(part, extract(graph, part, types)) for part in flows]
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) for name in graph.inputs}
    expected = whole(model.SerializeToString(), feeds)
    same(expected, run_chain(parts, [feeds], level="basic").sent[-1][0])
    check_split(model.SerializeToString(), parts, feeds, tolerance=1e-4, budget_s=0)


@settings(max_examples=60, deadline=None)
@given(dags())
def test_the_live_tensors_are_exactly_those_that_later_layers_need(model: ModelProto) -> None:
    graph = Graph.of(normalize(model))
    for position in range(1, len(graph) + 1):
        before = {name for each in graph.nodes[:position] for name in each.output} | {*graph.inputs}
        needed = {name for each in graph.nodes[position:] for name in each.input}
        wanted = {n for n in before if n in needed or n in graph.outputs}
        assert set(graph.live[position]) == wanted
        assert len(graph.live[position]) == len(wanted)


@settings(max_examples=60, deadline=None)
@given(dags())
def test_sorting_puts_every_node_after_what_it_reads(model: ModelProto) -> None:
    graph = Graph.of(normalize(model))
    for index, each in enumerate(graph.nodes):
        assert all(graph.producer.get(name, -1) < index for name in each.input)


milliseconds = st.integers(0, 50).map(float)


@given(st.data(), st.lists(milliseconds, min_size=1, max_size=8))
def test_no_other_choice_of_cuts_has_a_faster_slowest_stage(
    data: st.DataObject, segments: list[float]
) -> None:
    count = len(segments)
    send = data.draw(st.lists(milliseconds, min_size=count - 1, max_size=count - 1))
    stages = data.draw(st.integers(1, count))

    def times(cuts: tuple[int, ...]) -> list[float]:
        ends = [0, *(cut + 1 for cut in cuts), count]
        sent = [*(send[cut] for cut in cuts), 0.0]
        return [sum(segments[a:b]) + s for a, b, s in zip(ends, ends[1:], sent, strict=False)]

    def rank(cuts: tuple[int, ...]) -> tuple[float, float]:
        spent = times(cuts)
        return max(spent), sum(x * x for x in spent)

    chosen = tuple(balance(segments, send, stages))
    assert len(chosen) == stages - 1
    assert list(chosen) == sorted(set(chosen))
    best = min(rank(cuts) for cuts in combinations(range(count - 1), stages - 1))
    assert rank(chosen) == pytest.approx(best)


def test_more_stages_than_segments_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 2 stages"):
        balance([1.0, 1.0], [0.0], 3)
