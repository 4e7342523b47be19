"""Who exchanges with whom, and with which weight.

A graph is made from the participants' names alone, so that nodes with the same view of the fleet
have the same graph without a word. A participant that comes or goes changes the links of its
neighbours only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from hashlib import blake2b

import numpy as np

Graph = Mapping[str, frozenset[str]]

RING, COMPLETE, RANDOM, AUTOMATIC = "ring", "complete", "random", "auto"
SHAPES = (RING, COMPLETE, RANDOM, AUTOMATIC)
COMPLETE_UP_TO = 4  # participants of a graph whose shape is "auto"
DEGREE = 4  # usual neighbours of a node in a random graph


def graph_of(participants: Set[str], shape: str = AUTOMATIC, degree: int = DEGREE) -> Graph:
    """The neighbours of each participant; symmetric, connected, nobody is its own neighbour.

    shape: `ring`, `complete`, `random` (about `degree` neighbours: degree / 2 rings, each in
    another order; such a union of random Hamiltonian cycles is an expander with high probability,
    Friedman 2008), or `auto` (complete up to four participants, else random).
    """
    if shape == AUTOMATIC:
        shape = COMPLETE if len(participants) <= COMPLETE_UP_TO else RANDOM
    if shape == COMPLETE:
        return {name: frozenset(participants - {name}) for name in participants}
    rings = 1 if shape == RING else max(1, degree // 2)
    links: dict[str, set[str]] = {name: set() for name in participants}
    for number in range(rings):
        order = _order(participants, number)
        for name, following in zip(order, order[1:] + order[:1], strict=True):
            if name != following:
                links[name].add(following)
                links[following].add(name)
    return {name: frozenset(others) for name, others in links.items()}


def _order(participants: Set[str], number: int) -> list[str]:
    def place(name: str) -> bytes:
        return blake2b(name.encode(), digest_size=8, salt=number.to_bytes(4, "big")).digest()

    return sorted(participants, key=lambda name: (place(name), name))


def row_weights(degree: int, degrees: Mapping[str, int]) -> dict[str, float]:
    """Metropolis-Hastings weights of one node's neighbours, given its degree and theirs:
    1 / (1 + the larger of both degrees). Source: Xiao, Boyd, "Fast linear iterations for
    distributed averaging" (2004), section 2.

    They add up to less than 1; what is left is the node's weight for itself. Nodes that know each
    other's degrees give each other the same weight, so the matrix is symmetric, and each of its
    rows and columns adds up to 1.
    """
    return {name: 1.0 / (1 + max(degree, other)) for name, other in degrees.items()}


def mixing_matrix(graph: Graph, names: Sequence[str]) -> np.ndarray:
    """The weights of a whole graph, float64 [n, n], rows and columns in the order of `names`."""
    at = {name: index for index, name in enumerate(names)}
    matrix = np.zeros((len(names), len(names)))
    for name, others in graph.items():
        weights = row_weights(len(others), {other: len(graph[other]) for other in others})
        for other, weight in weights.items():
            matrix[at[name], at[other]] = weight
        matrix[at[name], at[name]] = 1.0 - sum(weights.values())
    return matrix
