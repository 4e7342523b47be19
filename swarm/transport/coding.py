"""In which codec a process sends features and results by the server; a short cut codes nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from swarm.flow.codec_choice import AUTO, NONE, Choice, candidates, obstacle, path_rate
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.transport.parcel import Parcel
from swarm.transport.routes import Routes
from swarm.wire.messages import Features
from swarm.wire.tensors import PLAIN, Coding, Part, encode_coded, known_codecs

log = logging.getLogger("swarm.codecs")


class Coder:
    """Chooses and applies the codecs for one stage's features, or for its results.

    what: these messages, for people.
    """

    __slots__ = ("_choice", "_codec", "_info", "_link", "_told", "_what")

    def __init__(self, link: Link, codec: str, info: ModelInfo, what: str) -> None:
        self._link = link
        self._codec = codec
        self._info = info
        self._what = what
        self._choice = Choice()
        self._told: set[str] = set()

    @property
    def is_on(self) -> bool:
        """Whether anything may be coded at all."""
        return self._codec != NONE

    def code(
        self, tensors: Mapping[str, np.ndarray], readers: frozenset[str] | None, rate: float
    ) -> tuple[list[Part] | None, Coding]:
        """The tensors as they travel, and in which coding; (None, `PLAIN`): as plain bytes.

        readers: the codecs that all receivers read, None where none is known. rate: bytes a second
        of the receivers' link, 0.0 where it is fast or unknown.

        Raises `InvalidArgument` for a dtype without a datatype.
        """
        own = self._link.pace.rate
        if readers is None or (self._codec == AUTO and not (own or rate)):
            return None, PLAIN
        rate = path_rate((own, rate))
        known = readers.intersection(known_codecs())
        if why_not := obstacle(self._codec, self._info.codecs, known):
            self._tell(self._codec, why_not)
        among = candidates(self._codec, self._info.codecs, known)
        size = sum([array.nbytes for array in tensors.values()])
        coding = self._choice.best(self._codec, size, rate, among)
        if coding is PLAIN:
            return None, PLAIN
        exact: list[str] = []
        parts = encode_coded(tensors, coding, exact)
        if exact:
            values = f"values of {exact[0]!r} that it cannot say, such as NaN or infinity"
            self._tell(coding.lossy, f"there are {values}")
        self._choice.did(coding, size, sum(map(len, parts)))
        return parts, coding

    def _tell(self, codec: str, why_not: str) -> None:
        """Once, for each codec and reason."""
        line = f"not as {codec}: {why_not}"
        if line not in self._told:
            self._told.add(line)
            log.warning(
                "%s of %s@%s go plain, %s", self._what, self._info.model, self._info.version, line
            )


class StageCoder:
    """Codes parcels for a stage that go by the server."""

    __slots__ = ("_coder", "_info", "_routes", "_stage")

    def __init__(self, routes: Routes, info: ModelInfo, stage: int) -> None:
        self._coder = Coder(routes.link, routes.codec, info, f"features for stage {stage}")
        self._routes = routes
        self._info = info
        self._stage = stage

    def code(self, parcel: Parcel) -> None:
        """Let the parcel's bytes for the server be coded ones, where that pays.

        Raises `InvalidArgument` for a dtype without a datatype."""
        routes = self._routes
        if not self._coder.is_on or parcel.loan.claims:
            return
        if routes.link.pace.is_far and routes.look_out is not None:
            routes.look_out()  # a mere client hears which codecs the nodes read
        beyond = routes.placement.beyond(self._info, self._stage)
        parcel.coded, _ = self._coder.code(parcel.features.tensors, beyond.codecs, beyond.rate)


def accepts(routes: Routes, info: ModelInfo) -> tuple[str, int]:
    """What a requester tells of itself: (codecs that it reads, bytes a second of its link).

    Nothing where its results are to come plain: its mode is `none`, or the server is near and the
    model's owner allows nothing but the exact values."""
    if routes.codec == NONE or not (info.codecs or routes.link.pace.is_far):
        return "", 0
    rate = routes.link.pace.rate
    # As a power of two: stages remember what requests have in common.
    told = 1 << (int(rate).bit_length() - 1) if 1 <= rate < 1e9 else 0
    return ",".join(known_codecs()), told


class AnswerCoder:
    """Codes a stage's results that go by the server."""

    __slots__ = ("_coder",)

    def __init__(self, routes: Routes, info: ModelInfo) -> None:
        self._coder = Coder(routes.link, routes.codec, info, "results")

    def code(self, features: Features, outputs: Mapping[str, np.ndarray]) -> list[Part] | None:
        """The outputs as they travel to the requester of `features`, None as plain bytes.

        Raises `InvalidArgument` for a dtype without a datatype."""
        if not features.accepts or not self._coder.is_on:
            return None
        readers = frozenset(features.accepts.split(","))
        return self._coder.code(outputs, readers, float(features.answer_rate))[0]
