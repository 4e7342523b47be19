"""What requests say in parameters, and answers too: the same words in both protocols."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from nodes.gateway.call import Caller, Region
from nodes.gateway.statuses import NotOffered
from swarm.errors import InvalidArgument
from swarm.wire import oip
from swarm.wire.messages import Request, Result
from swarm.wire.unfamiliar import told_of
from swarm.wire.urgency import checked_priority

MOST = 64  # parameters of a request, or of a tensor
LONGEST_WORD = 128  # characters of an id, a version, a session, a region's name
SHM_REGION = "shared_memory_region"
SHM_OFFSET = "shared_memory_offset"
SHM_SIZE = "shared_memory_byte_size"
BINARY, BINARY_SIZE = "binary_data", "binary_data_size"
SESSION_HEADER = "swarm-session"
PRIORITY_HEADER = "swarm-priority"
NOT_FINITE = "not_finite"  # of an output in JSON: so many values are NaN or infinite, and null here
IGNORED = "ignored"  # of an answer: the request's parameters that nobody here knows
KNOWN = frozenset(
    {
        "priority",
        "sequence_id",
        "sequence_start",
        "sequence_end",
        "timeout",
        "budget_ms",
        "version",
        "session",
        "traceparent",
        "weights",
        "allow_degraded",
        "binary_data_output",
    }
)
OF_TENSORS = frozenset({SHM_REGION, SHM_OFFSET, SHM_SIZE, BINARY, BINARY_SIZE, "classification"})


def checked(parameters: Any, of: str) -> Mapping[str, Any]:
    """of: "request", or a tensor's name. Raises `InvalidArgument`."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict) or len(parameters) > MOST:
        raise InvalidArgument(f"{of}: parameters must be an object of at most {MOST} fields")
    return parameters


def request_of(
    inputs: dict[str, np.ndarray],
    outputs: Iterable[str],
    caller: Caller,
    parameters: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    id: str,
    version: str,
    of_tensors: Iterable[Collection[str]] = (),
) -> Request:
    """What the mesh is asked, by a request's parameters and its headers, which go before. version:
    beside the parameters, "" for none. of_tensors: parameters of its tensors. Raises
    `InvalidArgument`, `NotOffered`, and `PermissionDenied` for a priority above the caller's."""
    _check_request(parameters)
    named = checked_priority(headers.get(PRIORITY_HEADER) or parameters.get("priority", ""))
    session = headers.get(SESSION_HEADER) or parameters.get("session", "")
    trace = headers.get("traceparent") or parameters.get("traceparent", "")
    return Request(
        inputs,
        id=word(id, "id"),
        version=word(version or parameters.get("version", ""), "version"),
        budget=_budget(parameters),
        session=word(session, f"a session ({SESSION_HEADER})"),
        agent=caller.agent,
        weights=count(parameters.get("weights", 0), "parameter weights"),
        allow_degraded=flag(parameters.get("allow_degraded"), "parameter allow_degraded"),
        # One that is no trace's is no error, by W3C's rules: the trace begins anew.
        traceparent=whole(trace) if isinstance(trace, str) and len(trace) <= LONGEST_WORD else "",
        outputs=tuple(outputs),
        ignored=_unknown(parameters, of_tensors),
        priority=caller.standing.priority_of(named, caller.agent),
        share=caller.standing.share,
    )


def _check_request(parameters: Mapping[str, Any]) -> None:
    """Raises `NotOffered` for a sequence."""
    if any(parameters.get(name) for name in ("sequence_id", "sequence_start", "sequence_end")):
        raise NotOffered(
            "sequences (parameter sequence_id) are not offered: send whole inputs; requests of one "
            f"session stay on one node by the header {SESSION_HEADER}"
        )


def flag(value: Any, name: str) -> bool | None:
    """True, false, or nothing said. Raises `InvalidArgument`."""
    if value is not None and type(value) is not bool:
        raise InvalidArgument(f"{name} must be true or false, not {value!r:.80}")
    return value


def _budget(parameters: Mapping[str, Any]) -> float | None:
    """Seconds, of `timeout` in microseconds, or of the mesh's own `budget_ms`; None without one.
    Raises `InvalidArgument`."""
    timeout = count(parameters.get("timeout", 0), "parameter timeout (microseconds)")
    if timeout:
        return timeout / 1e6
    budget = parameters.get("budget_ms")
    if budget is None:
        return None
    # The comparison also refuses NaN, and whole numbers that no float can hold.
    if type(budget) not in (int, float) or not -1e12 < budget < 1e12:
        raise InvalidArgument(f"budget_ms must be a number of milliseconds, not {budget!r:.80}")
    return float(budget / 1e3)


def region(parameters: Mapping[str, Any]) -> Region | None:
    """Where a tensor's parameters place it; None for one that comes in the message. Raises
    `InvalidArgument`."""
    if SHM_REGION not in parameters:
        return None
    return Region(
        word(parameters[SHM_REGION], SHM_REGION),
        count(parameters.get(SHM_OFFSET, 0), SHM_OFFSET),
        count(parameters.get(SHM_SIZE, 0), SHM_SIZE),
    )


def no_shared_memory(of: str = "") -> NotOffered:
    """The refusal where clients may register no memory. of: a tensor's name and a colon."""
    return NotOffered(f"{of}this gateway takes no shared memory of clients (--allow-client-shm)")


def check_no_classes(parameters: Mapping[str, Any], name: str) -> None:
    """Raises `NotOffered` for an output that is wanted as the names of its largest values."""
    if parameters.get("classification"):
        raise NotOffered(
            f"output {name!r}: classes (class_count, parameter classification) are not offered: "
            "take the whole output"
        )


def word(value: Any, name: str) -> str:
    """A short text. Raises `InvalidArgument`."""
    if not isinstance(value, str) or len(value) > LONGEST_WORD:
        raise InvalidArgument(f"{name} is a text of at most {LONGEST_WORD} characters")
    return whole(value)


def whole(text: str) -> str:
    """Without the halves of characters that JSON can say and nobody can write."""
    return text if text.isascii() else text.encode("utf-8", "ignore").decode()


def count(value: Any, name: str) -> int:
    """A whole number from 0 on, as such or as its text. Raises `InvalidArgument`."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{name} must be a whole number from 0 on, not {value!r:.80}")
    return value


def _unknown(parameters: Collection[str], of_tensors: Iterable[Collection[str]]) -> str:
    """The names of a request's parameters, and of its tensors', that mean nothing here: as of
    `oip.ignored`."""
    names = {name for name in parameters if name not in KNOWN}
    for each in of_tensors:
        names |= {name for name in each if name not in OF_TENSORS}
    return whole(oip.ignored(names))


def of_answer(result: Result, request: Request) -> dict[str, bool | float | int | str]:
    """Of an answer. hops: JSON text, since a parameter is a bool, a number or a text; times in
    microseconds."""
    said: dict[str, bool | float | int | str] = {
        "degraded": result.degraded,
        "weights": result.weights,
        "latency_us": round(result.latency * 1e6),
        "hops": json.dumps([hop.as_json() for hop in result.hops]),
    }
    if (age := result.cached_ms) is not None:
        said |= {"cached": True, "age_us": round(age * 1e3)}
    if result.degraded:
        said["message"] = result.message
    if result.unfamiliarity:
        said |= told_of(result.unfamiliarity, result.unfamiliar_rows)
    return said | ({IGNORED: request.ignored} if request.ignored else {})
