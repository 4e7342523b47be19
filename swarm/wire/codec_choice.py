"""In which codec tensors travel: one that is allowed, that all readers know, and that pays.

Pure. A codec costs time at both ends, and saves time on the link. The figures to begin with are
measured on features of small detectors (UltraFace RFB-320, slim-320, RFB-640; 15 cuts) on one core;
the ratio then follows the features that are really sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from swarm.errors import InvalidArgument
from swarm.wire.codecs import CODECS
from swarm.wire.compression import ZSTD
from swarm.wire.tensors import CODED_FROM, PLAIN, ZSTD_FROM, Coding

AUTO, NONE = "auto", "none"
MODES = (AUTO, NONE, *CODECS)
SLOWER = 4.0
"""A device at the edge is so many times slower than the core of the figures below."""
GAIN = 0.1
"""A codec that loses more has to save so large a share of what is left of the time."""
LEAST_S = 0.001
"""Seconds that a message takes at least before a codec is looked at: below, nothing is gained."""
FOLLOWS = 0.2  # weight of the newest message in a ratio


@dataclass(frozen=True, slots=True)
class Cost:
    """ratio: plain bytes for each coded one. seconds: of both ends together, for a plain byte."""

    ratio: float
    seconds: float


COSTS = {  # by increasing loss
    Coding("", True): Cost(1.5, 2.5e-9),
    Coding("f16", False): Cost(2.0, 1.0e-9),
    Coding("f16", True): Cost(2.4, 2.5e-9),
    Coding("i8", False): Cost(4.0, 0.5e-9),
    Coding("i8", True): Cost(5.6, 1.2e-9),
    Coding("i6", False): Cost(5.3, 0.8e-9),
    Coding("i6", True): Cost(7.6, 1.2e-9),
    Coding("i4", False): Cost(8.0, 0.8e-9),
    Coding("i4", True): Cost(11.9, 1.3e-9),
}


def mode_of(text: str) -> str:
    """The setting `--codec`, checked. Raises `InvalidArgument`."""
    if text not in MODES:
        raise InvalidArgument(f"--codec {text!r}: it is one of {', '.join(MODES)}")
    return text


class CodecRule(NamedTuple):
    """mode: one of `MODES`. allowed: lossy codecs of which it may choose."""

    mode: str
    allowed: frozenset[str]


def results_rule(mode: str, allowed: frozenset[str]) -> CodecRule:
    """How results travel under the setting `mode`, by which features travel.

    A mode that names a codec names, for results, the one of `allowed` that loses the most and no
    more than that codec does. Where there is none, results stay exact, as under `auto`.
    """
    if mode not in CODECS:
        return CodecRule(mode, allowed)
    for codec in reversed(CODECS[: CODECS.index(mode) + 1]):
        if codec in allowed:
            return CodecRule(codec, frozenset({codec}))
    return CodecRule(AUTO, frozenset())


def path_rate(rates: Iterable[float]) -> float:
    """Bytes a second of links in a row, each of which has a message whole before the next one.

    rates: of each link, 0.0 where it is fast or unknown. The result is 0.0 where all are.
    """
    slowness = sum(1 / rate for rate in rates if rate > 0)
    return 1 / slowness if slowness else 0.0


def candidates(mode: str, allowed: Collection[str], known: Collection[str]) -> Sequence[Coding]:
    """The codings that may be used, by increasing loss, without the plain one.

    mode: one of `MODES`. allowed: lossy codecs that the model's owner allowed. known: what both
    ends know (`known_codecs`). A mode that names a codec leaves no choice but of zstd.
    """
    if mode == NONE:
        return ()
    lossy = {codec for codec in allowed if codec in known and mode in (AUTO, codec)}
    zstd = ZSTD in known
    found = [c for c in COSTS if (c.lossy in lossy or not c.lossy) and (zstd or not c.zstd)]
    return found if mode == AUTO else [c for c in found if c.lossy]


def obstacle(mode: str, allowed: Collection[str], known: Collection[str]) -> str:
    """Why the codec that `mode` names is not used, or "": one line for people."""
    if mode in (AUTO, NONE):
        return ""
    if mode not in allowed:
        return (
            f"the model's owner does not allow it: `swarm model push --allow-codec {mode}` "
            "with a new version does"
        )
    return "" if mode in known else "the receiver does not know it: upgrade it"


class CodecChoice:
    """The codings of one way, and how well they did."""

    __slots__ = ("_ratios",)

    def __init__(self) -> None:
        self._ratios: dict[Coding, float] = {}

    def best(self, mode: str, size: int, rate: float, among: Sequence[Coding]) -> Coding:
        """The coding of a message of `size` bytes over a link of `rate` bytes a second, of
        `candidates`. rate: 0.0 where the link is fast, or not known.

        `auto` sends plain where nothing pays; a mode that names a codec uses it on every link.
        """
        if not among or size < CODED_FROM:
            return PLAIN
        if mode != AUTO:
            return among[-1] if size >= ZSTD_FROM else among[0]
        if rate <= 0 or size / rate < LEAST_S:
            return PLAIN
        best, least = PLAIN, size / rate
        for coding in among:
            cost = COSTS[coding]
            ratio = self._ratios.get(coding, cost.ratio)
            seconds = size / ratio / rate + size * cost.seconds * SLOWER
            if seconds < least * (1 - GAIN) and least - seconds > LEAST_S / 10:
                best, least = coding, seconds
        return best

    def did(self, coding: Coding, before: int, after: int) -> None:
        """A message of `before` bytes was `after` bytes in this coding."""
        if after > 0 and coding in COSTS:
            old = self._ratios.get(coding, COSTS[coding].ratio)
            self._ratios[coding] = old + FOLLOWS * (before / after - old)
