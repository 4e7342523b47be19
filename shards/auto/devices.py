"""The devices, links and wishes of a plan, as a TOML file has them.

source = "camera"            # the device at which requests arise and results are wanted
stays = true                 # its input must not leave it
usual_link = { mbit_s = 100, rtt_ms = 2 }   # between sites without a link of their own
codecs = ["none", "i8"]                     # that features may be sent with
jpeg = { kb = 14, encode_ms = 0.4, decode_ms = 0.4 }   # of the input, where it may leave as one

[[device]]
name = "camera"
speed = 0.25                 # 1.0: the machine that measures the model
memory = "512 MB"
site = "hall"

[[device]]
name = "box"
count = 2                    # box-1, box-2
site = "rack"
share = 0.5                  # of a core, where a container has a quota
period_ms = 100              # of the quota

[[link]]
between = ["hall", "rack"]
mbit_s = 20
rtt_ms = 10
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from shards.auto.problem import NO_CODEC, QUOTA_PERIOD_MS, Codec, Device, DeviceLink, JpegCost
from shards.errors import PlanError

MOST_DEVICES = 1000
# Measured on features of face detectors, 15 cuts: ratio, milliseconds of both ways for a megabyte,
# the largest change of a score.
CODECS = {
    "none": NO_CODEC,
    "f16": Codec("f16", 0.5, 1.0, 0.001),
    "i8": Codec("i8", 0.25, 0.46, 0.014),
    "i8+zstd": Codec("i8+zstd", 0.18, 1.23, 0.014),
    "i6+zstd": Codec("i6+zstd", 0.13, 1.2, 0.09),
    "i4+zstd": Codec("i4+zstd", 0.084, 1.3, 0.30),
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(MB|GB)")
_FIELDS = {
    "": {"source", "stays", "usual_link", "codecs", "jpeg", "device", "link"},
    "device": {"name", "speed", "memory", "site", "count", "share", "period_ms"},
    "link": {"between", "mbit_s", "rtt_ms"},
    "jpeg": {"kb", "encode_ms", "decode_ms"},
}


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fields of a `Problem` that are not the model's. picture: as which its input may leave the
    source."""

    devices: tuple[Device, ...]
    links: Mapping[tuple[str, str], DeviceLink]
    link: DeviceLink
    codecs: tuple[Codec, ...]
    source: str
    stays: bool
    picture: JpegCost | None = None


def read_fleet(text: str) -> Fleet:
    """Raises `PlanError`, which names the field."""
    try:
        doc = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"no TOML: {error}") from None
    _known(doc, "")
    rows, pairs = doc.get("device"), doc.get("link", [])
    if not isinstance(rows, list) or not rows:
        raise PlanError("a table [[device]] for each device is missing")
    if not isinstance(pairs, list):
        raise PlanError("link: a table [[link]] for each pair of sites")
    names = doc.get("codecs", ["none"])
    if not isinstance(names, list) or not names or set(map(str, names)) - set(CODECS):
        raise PlanError(f"codecs: some of {', '.join(CODECS)}")
    devices = tuple(device for row in rows for device in _devices(row))
    if len(devices) > MOST_DEVICES:
        raise PlanError(f"{len(devices)} devices, of {MOST_DEVICES} at most")
    return Fleet(
        devices,
        dict(_pair(row) for row in pairs),
        _link(doc.get("usual_link", {}), "usual_link"),
        tuple(CODECS[name] for name in names),
        _typed(doc, "source", str, ""),
        _typed(doc, "stays", bool, False),
        _picture(doc),
    )


def _known(row: Mapping[str, Any], table: str) -> None:
    if not isinstance(row, dict):
        raise PlanError(f"{table}: no table")
    allowed = _FIELDS[table]
    if strange := sorted(set(row) - allowed):
        where = f"[[{table}]]: " if table else ""
        raise PlanError(f"{where}no field is named {strange[0]!r}; there are {sorted(allowed)}")


def _devices(row: Mapping[str, Any]) -> list[Device]:
    _known(row, "device")
    name = _typed(row, "name", str, "")
    if not name:
        raise PlanError("a device without a name")
    count = _typed(row, "count", int, 1)
    if not 1 <= count <= MOST_DEVICES:
        raise PlanError(f"{name}: count: 1 to {MOST_DEVICES}, not {count}")
    speed, site = _number(row, "speed", 1.0), _typed(row, "site", str, "")
    memory = _memory(name, row.get("memory"))
    names = [name] if count == 1 else [f"{name}-{n}" for n in range(1, count + 1)]
    share, period = _number(row, "share", 1.0), _number(row, "period_ms", QUOTA_PERIOD_MS)
    return [Device(n, speed, memory, site, share=share, period_ms=period) for n in names]


def _memory(name: str, value: object) -> float:
    if value is None:
        return inf
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise PlanError(f'{name}: memory: as "512 MB" or "2 GB", not {value!r}')
    return float(found[1]) * (1e6 if found[2] == "MB" else 1e9)


def _pair(row: Mapping[str, Any]) -> tuple[tuple[str, str], DeviceLink]:
    _known(row, "link")
    between = row.get("between")
    if not isinstance(between, list) or len(between) != 2 or not all(map(_is_text, between)):
        raise PlanError('[[link]]: between: two sites, as ["hall", "rack"]')
    return (between[0], between[1]), _link(row, f"link {between[0]} to {between[1]}")


def _link(row: Mapping[str, Any], where: str) -> DeviceLink:
    _known(row, "link")
    mbit, rtt = _number(row, "mbit_s", inf), _number(row, "rtt_ms", 0.0)
    if mbit <= 0 or rtt < 0:
        raise PlanError(f"{where}: mbit_s is above 0, rtt_ms not below")
    return DeviceLink(mbit * 1e6 / 8, rtt)


def _picture(doc: Mapping[str, Any]) -> JpegCost | None:
    if "jpeg" not in doc:
        return None
    row = doc["jpeg"]
    _known(row, "jpeg")
    size, encode, decode = (_number(row, name, 0.0) for name in ("kb", "encode_ms", "decode_ms"))
    if not 0 < size < inf or not 0 <= encode < inf or not 0 <= decode < inf:
        raise PlanError("jpeg: kb is above 0; encode_ms and decode_ms not below")
    if doc.get("stays") or not doc.get("source"):
        raise PlanError("jpeg: it is sent by a source, whose input need not stay")
    return JpegCost(round(size * 1e3), encode, decode)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _typed(row: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    value = row.get(name, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PlanError(f"{name}: {value!r} is no {kind.__name__}")
    return value


def _number(row: Mapping[str, Any], name: str, default: float) -> float:
    value = row.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise PlanError(f"{name}: {value!r} is no number")
    return float(value)
