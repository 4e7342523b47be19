"""In which codec a process sends features and results by the server; a short cut codes nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from swarm.link import Link
from swarm.model import ModelInfo
from swarm.transport.parcel import Parcel
from swarm.transport.routes import Routes
from swarm.wire.codec_choice import (
    AUTO,
    NONE,
    CodecChoice,
    CodecRule,
    candidates,
    obstacle,
    path_rate,
    results_rule,
)
from swarm.wire.tensors import (
    PLAIN,
    Coding,
    Part,
    are_referred,
    encode_coded,
    known_codecs,
    map_prefix,
)

log = logging.getLogger("swarm.codecs")


class _Kind:
    """Tensors that are coded alike: features, or results. label: their name in the log."""

    __slots__ = ("_choice", "_info", "_label", "_rule", "_told")

    def __init__(self, info: ModelInfo, rule: CodecRule, label: str) -> None:
        self._info = info
        self._rule = rule
        self._label = label
        self._choice = CodecChoice()
        self._told: set[str] = set()

    def coding(
        self, tensors: Mapping[str, np.ndarray], known: frozenset[str], rate: float
    ) -> Coding:
        """The coding of these tensors. known: the codecs of both ends. rate: of the whole way."""
        mode, allowed = self._rule
        if why_not := obstacle(mode, allowed, known):
            self._tell(mode, why_not)
        among = candidates(mode, allowed, known)
        return self._choice.best(mode, _total_bytes(tensors), rate, among)

    def encoded(self, tensors: Mapping[str, np.ndarray], coding: Coding) -> list[Part]:
        """The entries of a map. Raises `InvalidArgument` for a dtype without a datatype."""
        exact: list[str] = []
        parts = encode_coded(tensors, coding, exact)
        if exact:
            values = f"values of {exact[0]!r} that it cannot say, such as NaN or infinity"
            self._tell(coding.lossy, f"there are {values}")
        self._choice.did(coding, _total_bytes(tensors), sum(map(len, parts)))
        return parts

    def _tell(self, codec: str, why_not: str) -> None:
        """Once, for each codec and reason."""
        line = f"not as {codec}: {why_not}"
        if line not in self._told:
            self._told.add(line)
            log.warning(
                "%s of %s@%s go plain, %s", self._label, self._info.model, self._info.version, line
            )


class Coder:
    """Chooses and applies the codecs of messages, each of which holds features, results or both.

    A tensor with the name of an output of the model is a result, also on its way through later
    stages. All other tensors are features. label: what these are called in the log.
    """

    __slots__ = ("_codec", "_features", "_link", "_outputs", "_results")

    def __init__(self, link: Link, codec: str, info: ModelInfo, label: str) -> None:
        self._link = link
        self._codec = codec
        self._outputs = frozenset(spec.name for spec in info.outputs)
        self._features = _Kind(info, CodecRule(codec, info.codecs), label)
        self._results = _Kind(info, results_rule(codec, info.result_codecs), "results")

    @property
    def is_on(self) -> bool:
        """Whether anything may be coded at all."""
        return self._codec != NONE

    def code(
        self, tensors: Mapping[str, np.ndarray], readers: frozenset[str] | None, rate: float
    ) -> list[Part] | None:
        """The tensors as they travel; None: as plain bytes.

        readers: the codecs that all receivers read, None where none is known. rate: bytes a second
        of the receivers' link, 0.0 where it is fast or unknown.

        Raises `InvalidArgument` for a dtype without a datatype.
        """
        own = self._link.send_rate.rate
        if readers is None or (self._codec == AUTO and not (own or rate)):
            return None
        rate = path_rate((own, rate))
        known = readers.intersection(known_codecs())
        chosen = [
            (kind, group, kind.coding(group, known, rate)) for kind, group in self._apart(tensors)
        ]
        if all(coding == PLAIN for _, _, coding in chosen):
            return None
        parts: list[Part] = [map_prefix(len(tensors))]
        for kind, group, coding in chosen:
            parts += kind.encoded(group, coding)
        return parts

    def _apart(
        self, tensors: Mapping[str, np.ndarray]
    ) -> Sequence[tuple[_Kind, Mapping[str, np.ndarray]]]:
        """The features, then the results: of several codecs a hop tells the first lossy one."""
        outputs = self._outputs
        if outputs.isdisjoint(tensors):
            return ((self._features, tensors),)
        if outputs.issuperset(tensors):
            return ((self._results, tensors),)
        features = {name: array for name, array in tensors.items() if name not in outputs}
        results = {name: array for name, array in tensors.items() if name in outputs}
        return ((self._features, features), (self._results, results))


def _total_bytes(tensors: Mapping[str, np.ndarray]) -> int:
    return sum([array.nbytes for array in tensors.values()])


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
        if not self._coder.is_on or parcel.loan.claims or are_referred(parcel.features.tensors):
            return
        if routes.link.send_rate.is_far and routes.look_out is not None:
            routes.look_out()  # a mere client hears which codecs the nodes read
        beyond = routes.placement.beyond(self._info, self._stage)
        parcel.coded = self._coder.code(parcel.features.tensors, beyond.codecs, beyond.rate)


def accepts(routes: Routes, info: ModelInfo) -> tuple[str, int]:
    """What a requester tells of itself: (codecs that it reads, bytes a second of its link).

    ("", 0) where its results are to come plain: its mode is `none`, or the server is near and the
    model's owner allows no lossy codec, not even for features."""
    lossy = info.codecs or info.result_codecs
    if routes.codec == NONE or not (lossy or routes.link.send_rate.is_far):
        return "", 0
    rate = routes.link.send_rate.rate
    # Rounded down to a power of two: stages remember what requests have in common.
    told = 1 << (int(rate).bit_length() - 1) if 1 <= rate < 1e9 else 0
    return ",".join(known_codecs()), told


class AnswerCoder:
    """Codes a stage's results that go by the server."""

    __slots__ = ("_coder",)

    def __init__(self, routes: Routes, info: ModelInfo) -> None:
        self._coder = Coder(routes.link, routes.codec, info, "results")

    def code(self, outputs: Mapping[str, np.ndarray], accepts: str, rate: int) -> list[Part] | None:
        """The outputs as they travel to a reader that tells this of itself (`accepts`), None as
        plain bytes.

        Raises `InvalidArgument` for a dtype without a datatype."""
        if not accepts or not self._coder.is_on or are_referred(outputs):
            return None
        return self._coder.code(outputs, frozenset(accepts.split(",")), float(rate))
