"""What learning together is compared with: each node alone, full gossip, and central training.

All of them start with the same head and see the same samples as the nodes do, with as many steps.
They are computed in this process, in lock-step, without a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nodes.learning.head import Array, HeadLayout, Labels, Parameters
from nodes.learning.options import LearnOptions
from nodes.learning.samples import SampleWindow
from nodes.learning.training import Training
from swarm.learning.consensus.graph import graph_of, mixing_matrix


@dataclass(frozen=True, slots=True)
class References:
    """Accuracies, 0 to 1, on images that nobody trains on. alone, gossip: of each node; central: of
    one model that sees all samples."""

    alone: tuple[float, ...]
    gossip: tuple[float, ...]
    central: float


def split_by_label(labels: Labels, classes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Indices of each node's samples: a class is dealt out evenly among the nodes that have it.

    classes: of each node. Raises `ValueError` for a class that fewer than two nodes have.
    """
    parts: list[list[int]] = [[] for _ in classes]
    for label in sorted(set(labels.tolist())):
        owners = [number for number, own in enumerate(classes) if label in own]
        if len(owners) < 2:
            raise ValueError(f"class {label} is at {len(owners)} nodes, two at least are needed")
        for turn, index in enumerate(np.flatnonzero(labels == label).tolist()):
            parts[owners[turn % len(owners)]].append(index)
    return [np.array(part) for part in parts]


def references(
    layout: HeadLayout,
    features: Array,
    labels: Labels,
    parts: Sequence[np.ndarray],
    test: tuple[Array, Labels],
    rounds: int,
    options: LearnOptions,
) -> References:
    """Train all three for that many rounds. features [n, width], labels [n]; parts: indices of each
    node's samples. test: features and labels to measure on. Blocking: a second or two."""
    count = len(parts)
    nodes = [_training(layout, features[p], labels[p], options, n) for n, p in enumerate(parts)]
    alone = [layout.fresh() for _ in nodes]
    for _ in range(rounds):
        alone = [_round(node, own) for node, own in zip(nodes, alone, strict=True)]
    names = [f"node {number}" for number in range(count)]
    matrix = mixing_matrix(graph_of(set(names)), names).astype(np.float32)
    gossip = [layout.fresh() for _ in nodes]
    for _ in range(rounds):
        gossip = [_round(node, own) for node, own in zip(nodes, gossip, strict=True)]
        gossip = [_mixed(row, gossip) for row in matrix]
    everything = np.concatenate(parts)
    # A step of it sees as many samples as one of all nodes does, and it holds out none.
    larger = replace(options, batch=options.batch * count, held_out=1e-9)
    centre = _training(layout, features[everything], labels[everything], larger, count)
    central = layout.fresh()
    for _ in range(rounds):
        central = _round(centre, central)
    return References(
        tuple(layout.accuracy(own, *test) for own in alone),
        tuple(layout.accuracy(own, *test) for own in gossip),
        layout.accuracy(central, *test),
    )


def _training(
    layout: HeadLayout, features: Array, labels: Labels, options: LearnOptions, seed: int
) -> Training:
    samples = SampleWindow(layout.width, layout.classes, options.capacity, options.held_out)
    samples.add(features, labels)
    return Training(layout, samples, options, seed)


def _round(training: Training, parameters: Parameters) -> Parameters:
    *_, after = training.round(parameters)
    return after


def _mixed(weights: Array, everyone: Sequence[Parameters]) -> Parameters:
    return {
        name: np.tensordot(weights, np.stack([own[name] for own in everyone]), axes=1)
        for name in everyone[0]
    }
