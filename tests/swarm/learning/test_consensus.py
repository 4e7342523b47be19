"""Mixing: who, with which weight, how far; and what holds a hostile neighbour."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.learning.consensus.choco import ChocoNode
from swarm.learning.consensus.graph import SHAPES, graph_of, mixing_matrix, row_weights
from swarm.learning.consensus.limits import TIMES_USUAL, Doubts, NormBound, clip_radius
from swarm.learning.consensus.step_size import StepSize, first_step

NAMES = st.sets(st.text("abcdefgh0123", min_size=1, max_size=6), min_size=1, max_size=24)
SIZE = 60


@settings(deadline=None)
@given(NAMES, st.sampled_from(SHAPES), st.integers(2, 8))
def test_the_mixing_matrix_is_symmetric_and_doubly_stochastic(
    names: set[str], shape: str, degree: int
) -> None:
    matrix = mixing_matrix(graph_of(names, shape, degree), sorted(names))
    assert np.array_equal(matrix, matrix.T)
    assert matrix.min() >= 0
    assert np.allclose(matrix.sum(axis=0), 1)
    assert np.allclose(matrix.sum(axis=1), 1)
    assert matrix.diagonal().min() > 0


@settings(deadline=None)
@given(NAMES, st.sampled_from(SHAPES))
def test_a_graph_is_connected_and_nobody_is_its_own_neighbour(names: set[str], shape: str) -> None:
    graph = graph_of(names, shape)
    assert graph.keys() == names
    assert not any(name in others for name, others in graph.items())
    reached, ahead = set(), [next(iter(names))]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += graph[name]
    assert reached == names


@settings(deadline=None)
@given(NAMES)
def test_a_node_that_comes_changes_the_links_of_its_neighbours_only(names: set[str]) -> None:
    before = graph_of(names, "random", 4)
    after = graph_of(names | {"newcomer"}, "random", 4)
    changed = {name for name in names if before[name] != after[name]}
    assert changed <= after["newcomer"]
    assert len(after["newcomer"]) <= 4


class Net:
    """ChocoNodes in rounds in which everything arrives."""

    def __init__(self, names: set[str], shape: str, share: float, step: float) -> None:
        graph = graph_of(names, shape)
        self.links = graph
        self.weights = {
            name: row_weights(len(others), {other: len(graph[other]) for other in others})
            for name, others in graph.items()
        }
        self.k = max(1, int(share * SIZE))
        self.nodes = {
            name: ChocoNode(np.zeros(SIZE, np.float32), 1, StepSize(step)) for name in sorted(names)
        }
        for name, others in graph.items():
            for other in others:
                self.nodes[name].adopt(other, 1, 0, self.nodes[other].estimate)

    def round(self, half: bool = True) -> None:
        for name in sorted(self.nodes):
            self.nodes[name].mix(self.weights[name])
        self.tell(half)

    def tell(self, half: bool = True) -> None:
        steps = {name: node.guard.step for name, node in self.nodes.items()}
        deltas = {name: node.next_delta(self.k, half=half) for name, node in self.nodes.items()}
        for name, delta in deltas.items():
            for other in self.links[name]:
                sequence = self.nodes[name].sequence
                self.nodes[other].receive(name, 1, sequence, delta, steps[name])

    def mean(self) -> np.ndarray:
        mean: np.ndarray = np.mean([n.x for n in self.nodes.values()], axis=0, dtype=np.float64)
        return mean

    def spread(self) -> float:
        """Largest distance of a node from the mean."""
        mean = self.mean()
        return max(float(np.linalg.norm(node.x - mean)) for node in self.nodes.values())


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 9),
    st.sampled_from(SHAPES),
    st.sampled_from([0.05, 0.1, 0.5, 1.0]),
    st.integers(0, 999),
)
def test_the_average_is_kept_while_all_deltas_arrive(
    nodes: int, shape: str, share: float, seed: int
) -> None:
    net = Net({f"n{number}" for number in range(nodes)}, shape, share, first_step(share))
    rng = np.random.default_rng(seed)
    for node in net.nodes.values():
        node.update(rng.normal(0, 1, SIZE).astype(np.float32))
    before = net.mean()
    for _ in range(20):
        net.round()
        assert np.abs(net.mean() - before).max() < 1e-4


@pytest.mark.parametrize(("shape", "share", "step"), [("ring", 0.1, 0.4), ("complete", 1.0, 1.0)])
def test_nodes_come_to_the_average(shape: str, share: float, step: float) -> None:
    net = Net({f"n{number}" for number in range(6)}, shape, share, step)
    for number, node in enumerate(net.nodes.values()):
        node.update(np.full(SIZE, number, np.float32))
    first = net.spread()
    for _ in range(300):
        net.round()
    assert net.spread() < 0.02 * first


def test_a_step_that_is_too_long_is_halved_until_the_consensus_holds() -> None:
    spreads = []
    for guarded in (True, False):
        net = Net({f"n{number}" for number in range(8)}, "complete", 0.1, 0.9)
        if not guarded:
            for node in net.nodes.values():
                node.guard.observe = lambda distance, moved: False  # type: ignore[method-assign]
        rng = np.random.default_rng(1)
        for node in net.nodes.values():
            node.update(rng.normal(0, 1, SIZE).astype(np.float32))
        for _ in range(400):
            net.round()
        spreads.append(net.spread())
        assert any(node.guard.halved for node in net.nodes.values()) == guarded
    assert spreads[0] < 1.0 < 100 < spreads[1]


def test_growth_by_local_updates_is_no_divergence() -> None:
    guard = StepSize(0.4)
    for number in range(200):
        assert not guard.observe(0.5 * number, 1.0)
    assert guard.step == 0.4


def test_a_distance_that_is_not_finite_halves_the_step() -> None:
    guard = StepSize(0.4)
    for _ in range(9):
        guard.observe(1.0, 0.1)
    assert guard.observe(math.nan, 0.1)
    assert guard.step == 0.2


def test_a_step_that_was_halved_is_tried_longer_again_but_not_as_long_as_it_failed() -> None:
    guard = StepSize(0.4)
    for distance in range(20):
        guard.observe(4.0**distance, 0.0)
    for _ in range(2000):
        guard.observe(1.0, 0.0)
    assert 0.05 < guard.step < 0.4


def test_a_local_update_that_is_not_finite_is_refused() -> None:
    node = ChocoNode(np.zeros(3, np.float32), 1, StepSize(0.4))
    with pytest.raises(ValueError, match="finite"):
        node.update(np.array([1, math.nan, 0], np.float32))
    assert not node.x.any()


def test_an_honest_sender_never_sends_a_delta_longer_than_it_was_told() -> None:
    node = ChocoNode(np.zeros(SIZE, np.float32), 1, StepSize(0.4))
    node.update(np.full(SIZE, 100, np.float32))
    for _ in range(30):
        assert node.next_delta(SIZE, longest=2.0, half=True).norm() <= 2.0
    assert 55 < float(np.linalg.norm(node.estimate)) <= 60  # what is left goes with later ones


lengths = st.lists(st.tuples(st.floats(0.01, 1), st.floats(0, 100)), min_size=1, max_size=9)


@given(lengths, st.floats(0.05, 0.9))
def test_what_is_clipped_to_is_never_more_than_an_honest_difference(
    pulls: list[tuple[float, float]], hostile: float
) -> None:
    named = {str(number): pull for number, pull in enumerate(pulls)}
    radius = clip_radius(named, hostile)
    assert 0 <= radius <= max(length for _, length in pulls)
    # However far the farthest one goes, the radius stays, where it has no more than its share.
    farthest = max(named, key=lambda name: named[name][1])
    weight = named[farthest][0]
    if weight <= hostile * sum(w for w, _ in pulls):
        named[farthest] = (weight, 1e9)
        assert clip_radius(named, hostile) == pytest.approx(radius, rel=1e-6, abs=1e-9)


def test_a_neighbour_that_stays_far_away_is_doubted_and_trusted_again_when_it_comes_near() -> None:
    doubts = Doubts()
    for _ in range(10):
        doubts.observe({"a": 1.0, "b": 1.1, "c": 0.9, "far": 50.0}, 0.25)
    assert doubts.doubted() == {"far"}
    for _ in range(80):
        doubts.observe({"a": 1.0, "b": 1.1, "c": 0.9, "far": 1.2}, 0.25)
    assert doubts.doubted() == set()
    for _ in range(10):
        doubts.observe({"a": 1.0, "b": 1.1, "c": 0.9, "far": math.nan}, 0.25)
    assert doubts.doubted() == {"far"}


def test_the_usual_length_bounds_a_delta_and_one_liar_does_not_move_it() -> None:
    bound = NormBound(1e6)
    assert bound.limit() == 1e6
    for number in range(30):
        bound.note(500.0 if number % 4 == 0 else 1.0)
    assert bound.limit() == TIMES_USUAL
