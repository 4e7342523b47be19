"""Rendezvous hashing: everyone who knows the same nodes gives the same answer, without talking.

Highest random weight (Thaler, Ravishankar, 1998), weighted by `-w / ln(u)`. When a node leaves,
only its own keys move; when one joins, it takes only its fair share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from math import log

from swarm.routing.candidate import Candidate

_MASK = (1 << 64) - 1
_SCALE = 2.0**-53


@lru_cache(maxsize=8192)
def hash64(text: str) -> int:
    """64 bits that are the same in every process and language (BLAKE2b-64, big-endian)."""
    return int.from_bytes(
        blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    )


def fraction(text: str) -> float:
    """A point in [0, 1) that belongs to `text`, the same everywhere."""
    return (hash64(text) >> 11) * _SCALE


def mix(key: int, node: int) -> int:
    """53 bits for a key and a node, both by `hash64`, mixed as in splitmix64."""
    mixed = key ^ node
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) >> 11


def score(key: int, node: int, weight: float = 1.0) -> float:
    """Score of a node for a key, both by `hash64`; the highest wins."""
    return -weight / log((mix(key, node) + 0.5) * _SCALE)


def rendezvous(key: str, nodes: Iterable[str]) -> list[str]:
    """The nodes in this key's order of preference, duplicates removed; ties by node id.

    The first is the owner; each next one takes over when those before it are gone.
    """
    hashed = hash64(key)
    return sorted(set(nodes), key=lambda node: (-score(hashed, hash64(node)), node))


def home(key: int, candidates: Sequence[Candidate]) -> int:
    """Index of the candidate that owns a key (`hash64`): the first in its rendezvous order."""
    weight = candidates[0].weight
    best, most = 0, -1.0
    for index, candidate in enumerate(candidates):
        if candidate.weight != weight:
            break
        mixed = mix(key, hash64(candidate.node))
        if mixed > most:
            best, most = index, mixed
    else:  # equal weights, the usual case: the order of the hashes is the order of the scores
        return best
    scores = [score(key, hash64(each.node), each.weight) for each in candidates]
    return max(range(len(scores)), key=scores.__getitem__)
