"""The messages of the data path: features, results, and requests of simple clients.

MessagePack maps, version field first; unknown fields are ignored; another major version
is refused. `Features.parts()` and `Result.parts()` give the pieces to be written, the
tensors' own memory among them: nothing is joined or copied here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from swarm.errors import DecodeError, InvalidArgument, Status
from swarm.subjects import may_answer
from swarm.wire import unfamiliar
from swarm.wire.hops import CACHED, LEFT_OUT, Hop, hop_of, is_hop, unpack_hops
from swarm.wire.maps import pack_open_map, unpack_map
from swarm.wire.tensors import (
    LIMITS,
    MessageLimits,
    Part,
    Tensors,
    codec_of,
    decode_tensors,
    encode_tensors,
)
from swarm.wire.urgency import HIGH, LOW, NORMAL, checked_priority

VERSION = 1
_PRINTABLE = re.compile("[!-~]+")  # no space, no control character
# Id, model, version and reply subject, all at once. The answer is published to the reply subject: a
# pattern, or a subject of the mesh or the server, is no inbox (`swarm.subjects.may_answer`).
_ROUTE = re.compile(r"(?:[!-~]{1,128} ){3}(?!swarm\.|\$)[!-)+-=?-~]{1,512}")
MAX_HOPS = 256
LEAST_KEY, MOST_KEY = 16, 128  # characters of a client's secret
_STATUS = {str(status): status for status in Status}


@dataclass(slots=True)
class Features:
    """A cut's tensors on their way to `stage`.

    budget_us: time left for the request when this was sent, in microseconds: a duration, and not a
    date, since the clocks of devices differ. tensors: arrays by name, or `Claimed` ones in shared
    memory. host: the host whose shared memory the requester can read, or "". hops: the maps that
    travel; a stage only appends its own. weights: the least weight version that the stages compute
    with, 0 for any. shadow: a copy, whose answer only is compared: the first to be dropped under
    load. packed_hops: the hops before them, packed, as they came from a process of this host
    (`swarm.wire.hops`). accepts: codecs that the requester reads, separated by commas
    (`swarm.wire.tensors.known_codecs`). answer_rate: bytes a second that the requester's link
    carries, 0 where it is fast or unknown. urgency: of the request (`swarm.wire.urgency`). instead:
    of a request to a lighter model, which version could not answer it, and why
    (`swarm.requests.stood_in`). refer: names of outputs of which the requester wants to know no
    more than where they are (`swarm.wire.tensors.Referred`). codec: how these features came; it
    does not travel.
    """

    id: str
    model: str
    version: str
    stage: int
    reply: str
    budget_us: int
    tensors: dict[str, Any]
    attempt: int = 1
    agent: str = ""
    sequence: int = 0
    session: str = ""
    traceparent: str = ""
    host: str = ""
    hops: list[dict[str, Any]] = field(default_factory=list)
    packed_hops: bytes = b""
    weights: int = 0
    accepts: str = ""
    answer_rate: int = 0
    codec: str = ""
    shadow: bool = False
    urgency: int = NORMAL
    instead: str = ""
    refer: tuple[str, ...] = ()

    @property
    def all_hops(self) -> list[dict[str, Any]]:
        """The hops of all stages so far, as maps. Raises `DecodeError`."""
        if not self.packed_hops:
            return self.hops
        return [*(hop.as_doc() for hop in unpack_hops(self.packed_hops)), *self.hops]

    @property
    def message_id(self) -> str:
        """The id by which JetStream drops copies."""
        return f"{self.id}/{self.stage}/{self.attempt}"

    def header(self) -> dict[str, Any]:
        doc: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "model": self.model,
            "version": self.version,
            "stage": self.stage,
            "attempt": self.attempt,
            "reply": self.reply,
            "budget_us": self.budget_us,
            "hops": self.all_hops,
        }
        # A field at its default does not travel (measured: a third of the header's cost).
        if self.agent:
            doc["agent"] = self.agent
        if self.sequence:
            doc["sequence"] = self.sequence
        if self.session:
            doc["session"] = self.session
        if self.traceparent:
            doc["traceparent"] = self.traceparent
        if self.host:
            doc["host"] = self.host
        if self.weights:
            doc["weights"] = self.weights
        if self.shadow:
            doc["shadow"] = True
        if self.accepts:
            doc["accepts"] = self.accepts
        if self.answer_rate:
            doc["answer_rate"] = self.answer_rate
        if self.urgency:
            doc["urgency"] = self.urgency
        if self.instead:
            doc["instead"] = self.instead
        if self.refer:
            doc["refer"] = self.refer
        return doc

    def parts(
        self, packed_tensors: bytes | None = None, coded: list[Part] | None = None
    ) -> list[Part]:
        """The message in pieces; `packed_tensors`, or `coded`, replaces the tensors' own
        encoding."""
        head = pack_open_map(self.header()) + b"\xa7tensors"
        if packed_tensors is not None:
            return [head + packed_tensors]
        return [head, *(encode_tensors(self.tensors) if coded is None else coded)]

    @classmethod
    def decode(cls, data: bytes | memoryview, limits: MessageLimits = LIMITS) -> Features:
        """Raises `DecodeError`; arrays view `data` where it is large."""
        doc = _versioned(data, limits)
        get: Any = doc.get
        features = cls(
            get("id", ""),
            get("model", ""),
            get("version", ""),
            get("stage"),
            get("reply"),
            get("budget_us"),
            decode_tensors(get("tensors"), limits),
            get("attempt", 1),
            get("agent", ""),
            get("sequence", 0),
            get("session", ""),
            get("traceparent", ""),
            get("host", ""),
            get("hops", []),
            weights=get("weights", 0),
            shadow=get("shadow", False) is True,
            accepts=get("accepts", ""),
            answer_rate=get("answer_rate", 0),
            codec=codec_of(get("tensors")),
            urgency=read_urgency(get("urgency", NORMAL)),
            instead=text if type(text := get("instead", "")) is str else "",
            refer=_names(get("refer", ())),
        )
        # One pass over all types (measured: a fifth of the time of checks field by field).
        if not (
            type(features.stage) is type(features.budget_us) is type(features.attempt) is int
            and type(features.id) is type(features.model) is type(features.version) is str
            and type(features.reply) is type(features.agent) is type(features.session) is str
            and type(features.traceparent) is type(features.host) is type(features.accepts) is str
            and type(features.sequence) is type(features.weights) is int
            and type(features.answer_rate) is int
            and type(features.hops) is list
            and _ROUTE.fullmatch(
                f"{features.id} {features.model} {features.version} {features.reply}"
            )
            and len(features.hops) <= MAX_HOPS
            and all(map(is_hop, features.hops))
        ):
            _explain(doc)
        return features


@dataclass(slots=True)
class Result:
    """The answer to a request.

    outputs: the model's outputs by name, empty unless `status` is OK. degraded: answered
    by a lighter model; `model` and `version` are that one's where it is a model of its own, and
    `message` says why. On failure `message`, `stage` and `node` say what went wrong where.
    latency: seconds from sending to this answer, measured by the requester. retry_after: seconds
    after which a request may be sent again that its requester, a lane or a stage refused, else 0.0.
    codec: how the outputs came, "" as the plain bytes. ignored: names of the request's parameters
    that mean nothing, of a request in JSON.
    way, why: where an edge that places its requests had it computed, and for which reason.
    reached: whether a node of the version may have had the request, as its requester knows; a
    failure without that tells nothing of the version.
    """

    id: str
    model: str = ""
    version: str = ""
    status: Status = Status.OK
    outputs: Tensors = field(default_factory=dict)
    message: str = ""
    stage: int = 0
    node: str = ""
    degraded: bool = False
    attempt: int = 1
    hops: tuple[Hop, ...] = ()
    latency: float = 0.0
    retry_after: float = 0.0
    codec: str = ""
    way: str = ""
    why: str = ""
    reached: bool = True
    ignored: str = ""

    @property
    def compute(self) -> float:
        """Seconds spent computing, over all hops."""
        return sum(hop.compute_us for hop in self.hops) / 1e6

    @property
    def unfamiliarity(self) -> float:
        """How far the request is from the model's calibration data, in times of what is usual at
        most: above 1 it is unlike them. 0.0 where no guard has judged it."""
        return unfamiliar.score_of(hop.extra for hop in self.hops)

    @property
    def unfamiliar_rows(self) -> str:
        """The rows of the request that are so, as `0,3`; of many the first ones, and `…`."""
        return unfamiliar.rows_of(hop.extra for hop in self.hops)

    @property
    def weights(self) -> int:
        """The highest weight version of the hops. Each hop names its own."""
        return max([hop.weights for hop in self.hops], default=0)

    @property
    def cached_ms(self) -> float | None:
        """The age of the answer in milliseconds where a node had kept it, None where it was
        computed for this request."""
        for hop in self.hops:
            age = hop.extra.get(CACHED) if hop.extra else None
            if isinstance(age, int | float) and 0 <= age < inf:
                return float(age)
        return None

    @property
    def left_out(self) -> dict[str, str]:
        """The parts of a composition that the answer does without, and why."""
        told = [hop.extra.get(LEFT_OUT) for hop in self.hops]
        return {
            str(part): str(why)
            for parts in told
            if isinstance(parts, Mapping)
            for part, why in parts.items()
        }

    def parts(self) -> list[Part]:
        return result_parts(self, [hop.as_doc() for hop in self.hops])

    @classmethod
    def decode(cls, data: bytes | memoryview, limits: MessageLimits = LIMITS) -> Result:
        """Raises `DecodeError`."""
        doc = _versioned(data, limits)
        get: Any = doc.get
        name, hops = get("status"), get("hops", [])
        status = _STATUS.get(name) if type(name) is str else None
        result = cls(
            get("id"),
            get("model", ""),
            get("version", ""),
            status or Status.INTERNAL,
            decode_tensors(get("tensors"), limits),
            get("message", ""),
            get("stage", 0),
            get("node", ""),
            get("degraded", False),
            get("attempt", 1),
        )
        # One pass over all types, as for features.
        if not (
            status is not None
            and type(result.id) is type(result.model) is type(result.version) is str
            and type(result.message) is type(result.node) is str
            and type(result.stage) is type(result.attempt) is int
            and type(result.degraded) is bool
            and type(hops) is list
            and all(map(is_hop, hops[:MAX_HOPS]))
        ):
            _explain_result(doc)
        result.codec = codec_of(get("tensors"))
        way, why = get("way", ""), get("why", "")
        if type(way) is type(why) is str:
            result.way, result.why = way[:64], why[:256]
        if result.status is Status.RESOURCE_EXHAUSTED:
            result.retry_after = _seconds(get("retry_after"))
        result.id = result.id[:128]  # the client's own: it stands in no subject
        result.hops = tuple([hop_of(hop) for hop in hops[:MAX_HOPS]])
        return result


def result_parts(
    result: Result,
    hops: list[dict[str, Any]],
    packed_tensors: bytes | None = None,
    coded: list[Part] | None = None,
) -> list[Part]:
    """A result in pieces, with `hops` in place of its own.

    hops: maps, as they travel. packed_tensors, or coded: replaces the encoding of the outputs."""
    doc: dict[str, Any] = {
        "v": VERSION,
        "id": result.id,
        "model": result.model,
        "version": result.version,
        "status": str(result.status),
        "attempt": result.attempt,
        "hops": hops,
    }
    if result.status is not Status.OK:
        doc |= {"message": result.message, "stage": result.stage, "node": result.node}
        if 0.0 < result.retry_after < inf:
            doc["retry_after"] = result.retry_after
    if result.degraded:
        doc |= {"degraded": True, "message": result.message}
    if result.way:
        doc |= {"way": result.way, "why": result.why}
    head = pack_open_map(doc) + b"\xa7tensors"
    if packed_tensors is not None:
        return [head + packed_tensors]
    return [head, *(encode_tensors(result.outputs) if coded is None else coded)]


def failure(
    features: Features,
    status: Status,
    message: str,
    stage: int,
    node: str,
    retry_after: float = 0.0,
) -> list[Part]:
    """The answer to a request that ends here. retry_after: as of `Result`."""
    return result_parts(
        Result(
            id=features.id,
            model=features.model,
            version=features.version,
            status=status,
            message=message,
            stage=stage,
            node=node,
            attempt=features.attempt,
            retry_after=retry_after,
        ),
        features.all_hops,
    )


def _seconds(value: Any) -> float:
    """A time that a sender may name; 0.0 for what is none."""
    return float(value) if type(value) in (int, float) and 0 < value < inf else 0.0


_OF_REQUEST = (
    "id",
    "version",
    "session",
    "agent",
    "weights",
    "traceparent",
    "key",
    "priority",
)


@dataclass(slots=True)
class Request:
    """A request of a simple client to `infer.<model>`; every field but `inputs` is optional.
    priority: low, normal, high, or "" for that of who asks.
    key: a secret of the client, by which alone it can end the request; "" where it never wants to.
    allow_degraded: whether its lighter model's answer is taken; None: as the model's owner says.
    These do not travel in MessagePack: outputs, those that are wanted, () for all; ignored, names
    of its parameters that mean nothing; shadow, of a copy that an answerer makes for itself; share,
    of the turns that its agent's requests have while many wait, 0.0 where nobody gives shares;
    refer, as of `Features`."""

    inputs: dict[str, np.ndarray]
    id: str = ""
    version: str = ""
    budget: float | None = None  # seconds
    session: str = ""
    agent: str = ""
    weights: int = 0  # the least weight version that the answer is computed with
    shadow: bool = False
    traceparent: str = ""  # W3C Trace Context
    key: str = field(default="", repr=False)
    outputs: tuple[str, ...] = ()
    ignored: str = ""
    priority: str = ""
    share: float = 0.0
    allow_degraded: bool | None = None
    refer: tuple[str, ...] = ()

    def parts(self) -> list[Part]:
        doc: dict[str, Any] = {"v": VERSION}
        for key in _OF_REQUEST:
            if value := getattr(self, key):
                doc[key] = value
        if self.budget is not None:
            doc["budget_us"] = round(self.budget * 1e6)
        if self.allow_degraded is not None:
            doc["allow_degraded"] = self.allow_degraded
        return [pack_open_map(doc) + b"\xa7tensors", *encode_tensors(self.inputs)]

    @classmethod
    def decode(cls, data: bytes | memoryview, limits: MessageLimits = LIMITS) -> Request:
        """Raises `DecodeError`. The tensors may stand under `tensors` or `inputs`."""
        doc = _versioned(data, limits)
        tensors = decode_tensors(doc.get("tensors", doc.get("inputs")), limits)
        for name, value in tensors.items():
            if not isinstance(value, np.ndarray):
                raise DecodeError(f"input {name!r}: codec shm is for nodes of one host only")
        budget = _get(doc, "budget_us", int, None)
        return cls(
            inputs=tensors,
            id=_get(doc, "id", str, "")[:128],
            version=_get(doc, "version", str, ""),
            budget=None if budget is None else budget / 1e6,
            session=_get(doc, "session", str, "")[:128],
            agent=_get(doc, "agent", str, "")[:128],
            weights=_get(doc, "weights", int, 0),
            traceparent=_get(doc, "traceparent", str, "")[:128],
            key=checked_key(doc.get("key", "")),
            priority=read_priority(doc.get("priority", "")),
            allow_degraded=_get(doc, "allow_degraded", bool, None),
        )


def read_priority(value: Any) -> str:
    """The priority that a client names. Raises `DecodeError`."""
    if value == "":
        return ""
    try:
        return checked_priority(value)
    except InvalidArgument as error:
        raise DecodeError(str(error)) from None


def _names(value: Any) -> tuple[str, ...]:
    """Of tensors; none for what is no list of names: they ask for less, and change no answer."""
    is_list = isinstance(value, list | tuple) and all(type(name) is str for name in value)
    return tuple(value) if is_list else ()


def read_urgency(value: Any) -> int:
    """Of features; normal for what a later version of the code may mean by it."""
    return value if type(value) is int and LOW <= value <= HIGH else NORMAL


def checked_key(value: Any) -> str:
    """The secret by which a client ends its request; one that is guessed in no lifetime. Raises
    `DecodeError`, which does not repeat it."""
    if value != "" and (type(value) is not str or not LEAST_KEY <= len(value) <= MOST_KEY):
        raise DecodeError(
            f"key: a secret text of {LEAST_KEY} to {MOST_KEY} characters, drawn for this request"
        )
    return str(value)


def _versioned(data: bytes | memoryview, limits: MessageLimits) -> dict[str, Any]:
    doc = unpack_map(data, limits.bytes)
    if doc.get("v") != VERSION:
        raise DecodeError(
            f"message version {doc.get('v')!r:.80}; this node speaks version {VERSION}: "
            "run the same major version of swarm on all nodes"
        )
    return doc


def _explain(doc: dict[str, Any]) -> None:
    """Raise the `DecodeError` that names the first wrong field of features."""
    for key in ("id", "model", "version"):
        _name(doc, key)
    for key in ("stage", "budget_us"):
        _get(doc, key, int)
    _reply(doc)
    for key in ("attempt", "sequence", "weights", "answer_rate"):
        _get(doc, key, int, 0)
    for key in ("agent", "session", "traceparent", "host", "accepts"):
        _get(doc, key, str, "")
    hops = _get(doc, "hops", list, [])
    if len(hops) > MAX_HOPS:
        raise DecodeError(f"{len(hops)} hops; at most {MAX_HOPS} are accepted")
    for hop in hops:
        Hop.from_doc(hop)
    raise DecodeError("malformed features")


def _explain_result(doc: dict[str, Any]) -> None:
    """Raise the `DecodeError` that names the first wrong field of a result."""
    if _get(doc, "status", str) not in _STATUS:
        raise DecodeError(f"status {doc['status']!r:.80} is not a gRPC status name")
    _get(doc, "id", str)
    for key in ("model", "version", "message", "node"):
        _get(doc, key, str, "")
    for key in ("stage", "attempt"):
        _get(doc, key, int, 0)
    _get(doc, "degraded", bool, False)
    for hop in _get(doc, "hops", list, [])[:MAX_HOPS]:
        Hop.from_doc(hop)
    raise DecodeError("malformed result")


def _get(doc: dict[str, Any], key: str, kind: type, *default: Any) -> Any:
    value = doc.get(key, *default)
    if type(value) is not kind and not (default and value is default[0]):
        raise DecodeError(f"field {key!r} must be {kind.__name__}, not {type(value).__name__}")
    return value


def _name(doc: dict[str, Any], key: str) -> str:
    value = doc.get(key)
    if type(value) is not str or _PRINTABLE.fullmatch(value) is None or len(value) > 128:
        raise DecodeError(f"field {key!r} must be 1 to 128 printable ASCII characters")
    return value


def _reply(doc: dict[str, Any]) -> str:
    """The answer is published there: a space or a line's end in it would be a command to the
    server, and a malformed one ends the connection of each node that serves the message."""
    value = doc.get("reply")
    if type(value) is not str or _PRINTABLE.fullmatch(value) is None or len(value) > 512:
        raise DecodeError("field 'reply' must be a subject of 1 to 512 printable characters")
    if not may_answer(value) or "*" in value or ">" in value:
        raise DecodeError("field 'reply' must be an inbox: no pattern, nor a subject of the mesh")
    return value
