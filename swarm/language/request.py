"""What a client asks for, and what each stage knows of a session. Pure.

Clients write JSON or MessagePack, a map either way; the fields are those of `GenerateRequest.read`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from swarm.errors import DecodeError, InvalidArgument
from swarm.subjects import TOKEN, may_answer
from swarm.wire.maps import is_packed_map, pack, unpack_map

MOST_BYTES = 4 << 20  # of a request
MOST_TOKENS = 1 << 20  # of a prompt, and of an answer
MOST_ID = 1 << 31
MOST_STOPS, LONGEST_STOP = 16, 256  # strings, characters
MOST_ALTERNATIVES, MOST_PIECES = 1024, 20  # likeliest tokens; those whose texts are told
LONGEST_SECRET = 64  # characters
MOST_SCHEMA = 16 << 10  # characters of a JSON schema
DEFAULT_BUDGET, MOST_BUDGET = 120.0, 600.0  # seconds
_FORM = 'a request is {"text": "…"}, {"messages": [{"role", "content"}, …]} or {"prompt": [ids]}'
DEFAULT_TOKENS = 256  # of an answer, where the client names no number


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen. temperature: 0 for the likeliest token. top_p, top_k: 1.0 and 0 leave
    all tokens. repetition_penalty: of Keskar et al. (CTRL, 2019), 1.0 for none. seed: the draw at a
    position depends on it and on the position alone. alternatives: likeliest tokens to tell with
    each one, beside its own log probability; None to tell neither. first: the first token, whatever
    the model finds; None for its choice."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    alternatives: int | None = None
    first: int | None = None

    def as_doc(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        usual = Sampling()
        return {
            name: getattr(self, name)
            for name in _SAMPLING
            if getattr(self, name) != getattr(usual, name)
        }

    @classmethod
    def read(cls, doc: Mapping[str, Any]) -> Sampling:
        """Raises `InvalidArgument`."""
        return cls(
            temperature=number(doc, "temperature", 0.0, 0.0, 100.0),
            top_p=number(doc, "top_p", 1.0, 0.0, 1.0),
            top_k=integer(doc, "top_k", 0, 0, MOST_ID),
            repetition_penalty=number(doc, "repetition_penalty", 1.0, 0.01, 100.0),
            seed=integer(doc, "seed", 0, -(1 << 63), (1 << 64) - 1),
            alternatives=None
            if doc.get("alternatives") is None
            else integer(doc, "alternatives", 0, 0, MOST_ALTERNATIVES),
            first=None if doc.get("first") is None else integer(doc, "first", 0, 0, MOST_ID - 1),
        )


RECOMMENDED = ("temperature", "top_p", "top_k", "repetition_penalty")
_SAMPLING = (*RECOMMENDED, "seed", "alternatives", "first")


@dataclass(frozen=True, slots=True)
class Opening:
    """What every stage of a session knows beside its token ids: enough to begin it anew anywhere.

    reply: the client's inbox. head: where the node of stage 1 takes tokens. prompt: so many of the
    ids are the prompt, the others were generated. most: tokens to generate. json: the client reads
    JSON. schema: JSON schema of the answer, as text; "" for any answer. given: so many ids at the
    prompt's end are the answer's beginning, which the client has: its text goes on behind them."""

    reply: str
    head: str
    prompt: int
    most: int
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    json: bool = False
    schema: str = ""
    given: int = 0

    @property
    def answer(self) -> int:
        """Where the answer's ids begin."""
        return self.prompt - self.given

    def as_doc(self) -> dict[str, Any]:
        """For the wire between stages."""
        doc: dict[str, Any] = {
            "reply": self.reply,
            "head": self.head,
            "prompt": self.prompt,
            "most": self.most,
            "sampling": self.sampling.as_doc(),
            "stops": list(self.stops),
            "stop_ids": list(self.stop_ids),
            "json": self.json,
        }
        doc |= {"schema": self.schema} if self.schema else {}
        return doc | ({"given": self.given} if self.given else {})

    @classmethod
    def read(cls, doc: Any) -> Opening:
        """Raises `DecodeError`."""
        if not isinstance(doc, dict):
            raise DecodeError("a session's opening is a map")
        try:
            return cls(
                reply=_inbox(doc, "reply"),
                head=_inbox(doc, "head"),
                prompt=integer(doc, "prompt", 0, 0, MOST_TOKENS),
                most=integer(doc, "most", 0, 0, MOST_TOKENS),
                sampling=Sampling.read(doc.get("sampling") or {}),
                stops=strings(doc, "stops"),
                stop_ids=ids_of(doc, "stop_ids"),
                json=doc.get("json") is True,
                schema=text(doc, "schema", MOST_SCHEMA),
                given=integer(doc, "given", 0, 0, integer(doc, "prompt", 0, 0, MOST_TOKENS)),
            )
        except InvalidArgument as error:
            raise DecodeError(f"a session's opening: {error}") from None


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A request for tokens. session: as its client writes it the public id, "" for a new one; from
    the node on that takes it, the nodes' own name. key: the secret of the session's client
    (`swarm.language.keys`), which no text of a request shows. prompt: token ids; or `text`; or
    `messages` of a chat, with `tools` that its template may name. fit: take fewer than `max_tokens`
    where the context has no room for so many. made: tokens that the client has already, of an
    attempt before this one; `epoch` counts attempts, and `head` is the node that took the last one.
    budget: seconds. has_seed: the client named a seed. routed: a node of stage 1 passed it to this
    one, which holds its beginning. recommended: fields of the sampling that are taken as the
    model's owner recommends them, where it does. given: ids that the answer begins with, which
    count as prompt: `max_tokens` are those behind. answered: so many of the prompt's ids were
    `given`, see `joined`. The rest: `Opening`."""

    session: str = ""
    key: str = field(default="", repr=False)
    prompt: tuple[int, ...] = ()
    text: str | None = None
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int = DEFAULT_TOKENS
    fit: bool = False
    sampling: Sampling = Sampling()
    stops: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    budget: float = DEFAULT_BUDGET
    version: str = ""
    agent: str = ""
    made: tuple[int, ...] = ()
    epoch: int = 0
    head: str = ""
    has_seed: bool = True
    routed: bool = False
    recommended: tuple[str, ...] = ()
    schema: str = ""
    given: tuple[int, ...] = ()
    answered: int = 0
    json: bool = field(default=False, compare=False)

    def joined(self) -> GenerateRequest:
        """With the ids that are given as the end of the prompt, which is ids already."""
        if not self.given:
            return self
        prompt, answered = (*self.prompt, *self.given), self.answered + len(self.given)
        return replace(self, prompt=prompt, given=(), answered=answered)

    def as_doc(self) -> dict[str, Any]:
        """For the wire. Defaults are left out."""
        doc: dict[str, Any] = {"v": 1, "max_tokens": self.max_tokens, "budget": self.budget}
        doc |= self.sampling.as_doc()
        if self.has_seed:
            doc["seed"] = self.sampling.seed
        if self.text is not None:
            doc["text"] = self.text
        elif self.messages:
            doc["messages"] = [dict(message) for message in self.messages]
            if self.tools:
                doc["tools"] = [dict(tool) for tool in self.tools]
        else:
            doc["prompt"] = pack_ids(self.prompt)
        lists = {"stop": list(self.stops), "stop_ids": list(self.stop_ids)}
        lists["recommended"] = list(self.recommended)
        doc |= {name: value for name, value in lists.items() if value}
        for name in ("session", "key", "version", "agent", "epoch", "head", "schema", "answered"):
            if value := getattr(self, name):
                doc[name] = value
        doc |= {name: True for name in ("json", "fit", "routed") if getattr(self, name)}
        for name in ("made", "given"):
            if ids := getattr(self, name):
                doc[name] = pack_ids(ids)
        return doc

    def encode(self) -> bytes:
        """MessagePack. Raises `InvalidArgument` for texts and maps that it cannot write, and for
        more than a node reads."""
        try:
            data = pack(self.as_doc())
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidArgument(f"the request cannot be written: {error}") from None
        if len(data) > MOST_BYTES:
            raise InvalidArgument(f"a request of {len(data)} bytes; at most {MOST_BYTES} are read")
        return data

    @classmethod
    def decode(cls, data: bytes | memoryview) -> GenerateRequest:
        """From JSON or MessagePack. Raises `DecodeError`, `InvalidArgument`."""
        doc, is_json = request_map(data)
        request = cls.read(doc)
        return replace(request, json=True) if is_json else request

    @classmethod
    def read(cls, doc: Mapping[str, Any]) -> GenerateRequest:
        """Raises `InvalidArgument`, naming the field."""
        if doc.get("v", 1) != 1:
            raise InvalidArgument(f"requests of version {doc.get('v')!r} are not read; 1 is")
        given = [name for name in ("prompt", "text", "messages") if doc.get(name) is not None]
        if len(given) != 1:
            raise InvalidArgument("a request has one of: prompt (token ids), text, messages")
        messages, tools = maps(doc, "messages"), maps(doc, "tools")
        if given == ["messages"] and not messages:
            raise InvalidArgument("messages: a chat has one at least")
        if tools and not messages:
            raise InvalidArgument("tools: they go with messages of a chat")
        recommended = strings(doc, "recommended")
        if unknown := set(recommended) - set(RECOMMENDED):
            raise InvalidArgument(f"recommended: {', '.join(sorted(unknown))} cannot be")
        prompt = ids_of(doc, "prompt")
        if given == ["prompt"] and not prompt:
            raise InvalidArgument("prompt: it needs one token id at least")
        return cls(
            session=name_of(doc, "session"),
            key=secret(doc, "key"),
            prompt=prompt,
            text=None if doc.get("text") is None else text(doc, "text", MOST_BYTES),
            messages=messages,
            tools=tools,
            fit=doc.get("fit") is True,
            max_tokens=integer(doc, "max_tokens", DEFAULT_TOKENS, 1, MOST_TOKENS),
            sampling=Sampling.read(doc),
            stops=strings(doc, "stop"),
            stop_ids=ids_of(doc, "stop_ids"),
            budget=number(doc, "budget", DEFAULT_BUDGET, 0.0, MOST_BUDGET),
            version=name_of(doc, "version"),
            agent=name_of(doc, "agent"),
            made=ids_of(doc, "made"),
            epoch=integer(doc, "epoch", 0, 0, 1 << 31),
            head=name_of(doc, "head"),
            has_seed=doc.get("seed") is not None,
            routed=doc.get("routed") is True,
            recommended=recommended,
            schema=schema_of(doc),
            given=ids_of(doc, "given"),
            answered=integer(doc, "answered", 0, 0, len(prompt)),
            json=doc.get("json") is True,
        )


def is_json(data: bytes | memoryview) -> bool:
    """Whether a request is text: read as JSON, and answered so (`swarm.wire.oip.is_json`)."""
    return not is_packed_map(data)


def request_map(data: bytes | memoryview) -> tuple[dict[str, Any], bool]:
    """The map of a request, and whether it came as JSON. Raises `DecodeError`,
    `InvalidArgument`."""
    if not is_json(data):
        return unpack_map(data, MOST_BYTES), False
    if len(data) > MOST_BYTES:
        raise InvalidArgument(f"a request of {len(data)} bytes; at most {MOST_BYTES} are read")
    try:
        doc = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"not JSON: {error}; {_FORM}") from None
    if not isinstance(doc, dict):
        raise InvalidArgument(_FORM)
    return doc, True


def integer(doc: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A whole number of a map; 12.0, as some languages write one, is 12. Raises
    `InvalidArgument`."""
    value = doc.get(name)
    if value is None:
        return default
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise InvalidArgument(f"{name}: a whole number from {least} to {most}, not {value!r:.40}")
    return value


def number(doc: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    """A finite number of a map. Raises `InvalidArgument`."""
    value = doc.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not math.isfinite(value) or not least <= value <= most:
        raise InvalidArgument(f"{name}: a number from {least:g} to {most:g}, not {value!r:.40}")
    return float(value)


def text(doc: Mapping[str, Any], name: str, longest: int) -> str:
    """A text of a map, "" where it is left out. Raises `InvalidArgument`."""
    value = doc.get(name, "")
    if not isinstance(value, str) or len(value) > longest:
        raise InvalidArgument(f"{name}: text of at most {longest} characters")
    return value


def secret(doc: Mapping[str, Any], name: str) -> str:
    """A text of a map that no error repeats. Raises `InvalidArgument`."""
    value = doc.get(name, "")
    if not isinstance(value, str) or len(value) > LONGEST_SECRET:
        raise InvalidArgument(f"{name}: text of at most {LONGEST_SECRET} characters")
    return value


def _inbox(doc: Mapping[str, Any], name: str) -> str:
    """Where a node publishes what it has for somebody. Raises `InvalidArgument`."""
    value = text(doc, name, 512)
    if not may_answer(value):
        raise InvalidArgument(f"{name}: an inbox, and no subject of the mesh")
    return value


def schema_of(doc: Mapping[str, Any]) -> str:
    """A JSON schema as text: a map of the request, or its text; "" for none. Raises
    `InvalidArgument`."""
    value = doc.get("schema")
    if isinstance(value, Mapping):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArgument(f"schema: {error}") from None
    return text({"schema": "" if value is None else value}, "schema", MOST_SCHEMA)


def name_of(doc: Mapping[str, Any], name: str) -> str:
    """A name that may stand in a subject, or "". Raises `InvalidArgument`."""
    value = text(doc, name, 128)
    if value and TOKEN.fullmatch(value) is None:
        raise InvalidArgument(f"{name} {value!r}: letters, digits, '_' and '-', 1 to 128 of them")
    return value


def strings(doc: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One text or several. Raises `InvalidArgument`."""
    value = doc.get(name) or []
    value = [value] if isinstance(value, str) else value
    if (
        not isinstance(value, list | tuple)
        or len(value) > MOST_STOPS
        or not all(isinstance(one, str) and 0 < len(one) <= LONGEST_STOP for one in value)
    ):
        raise InvalidArgument(
            f"{name}: at most {MOST_STOPS} texts of 1 to {LONGEST_STOP} characters"
        )
    return tuple(value)


def maps(doc: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], ...]:
    """A list of maps, () where it is left out. Raises `InvalidArgument`."""
    value = doc.get(name)
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, dict) for one in value):
        raise InvalidArgument(f"{name}: a list of maps")
    return tuple(value)


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit numbers: a list would be limited to 4096 items."""
    return np.asarray(ids, "<u4").tobytes()


def ids_of(doc: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """Token ids: a list, or bytes of 32-bit numbers. Raises `InvalidArgument`."""
    value = doc.get(name)
    if value is None:
        return ()
    if isinstance(value, bytes | memoryview):
        if len(value) % 4 or len(value) > 4 * MOST_TOKENS:
            raise InvalidArgument(f"{name}: {len(value)} bytes are no list of 32-bit numbers")
        read: Sequence[Any] = np.frombuffer(value, "<u4").tolist()
    else:
        read = value
    if (
        not isinstance(read, list | tuple)
        or len(read) > MOST_TOKENS
        or not all(type(one) is int and 0 <= one < MOST_ID for one in read)
    ):
        raise InvalidArgument(f"{name}: a list of token ids, whole numbers from 0 on")
    return tuple(read)
