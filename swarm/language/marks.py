"""Which beginnings of prompts a node holds, in few bytes that gossip carries. Pure.

A mark is a hash of all token ids up to the end of a chunk. A node tells at most `MOST` of them;
whoever has a prompt hashes it in the same places, and looks for its longest beginning among them.
A mark that lies, by chance or by age, costs a session the copy and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from swarm.language.request import pack_ids

BYTES = 6  # of a mark
MOST = 16  # marks of one stage on one node


def chain(ids: Sequence[int], size: int) -> list[bytes]:
    """The marks of the whole chunks of `ids`, the shortest beginning first. size: of a chunk."""
    found, hashed = [], blake2b(digest_size=BYTES)
    for end in range(size, len(ids) + 1, size):
        hashed.update(pack_ids(ids[end - size : end]))
        found.append(hashed.digest())
    return found


def tell(chains: Iterable[Sequence[bytes]]) -> bytes:
    """What a node tells of the beginnings that it holds, those that were used last the first: whole
    prompts, which the next request of a chat begins with, then beginnings that it holds most of."""
    chains = [each for each in chains if each]
    whole = list(dict.fromkeys(each[-1] for each in chains))
    holds = Counter(mark for each in chains for mark in each)
    # Where one prompt goes on as another does not, and some places before.
    parts = {
        mark: holds[mark] * chunks
        for each in chains
        for chunks, mark in enumerate(each, 1)
        if _is_round(chunks) or holds[mark] > holds[each[min(chunks, len(each) - 1)]]
    }
    best = sorted(parts, key=lambda mark: -parts[mark])
    return b"".join(list(dict.fromkeys([*whole[: MOST // 2], *best, *whole]))[:MOST])


def known(told: bytes, wanted: Sequence[bytes]) -> int:
    """How many chunks of a prompt a node holds at least, by what it tells. wanted: its `chain`."""
    marks = {told[at : at + BYTES] for at in range(0, len(told), BYTES)}
    return max((at for at, mark in enumerate(wanted, 1) if mark in marks), default=0)


def _is_round(chunks: int) -> bool:
    """Whether a number is 1, 2, 3, 4, 6, 8, 12 …: a power of two, or one and a half of one."""
    return chunks % (1 << max(0, chunks.bit_length() - 2)) == 0
