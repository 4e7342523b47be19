"""A version is what its files and settings are, whatever was measured when it was made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swarm.models.push_claim import content_digest, same_content, same_version


def made(**changes: Any) -> bytes:
    shard = {"stage": 1, "sha256": "a" * 64, "start": 0, "end": 4, "compute_ms": 1.0}
    doc: dict[str, Any] = {
        "model": "m",
        "version": "1",
        "created": "2026-01-01T00:00:00Z",
        "shards": [shard | changes.pop("shard", {})],
        "extra": {"layers": 4, "notes": [], "tolerance": 1e-5},
        "batching": {"asked": "auto", "by": "structure", "why": ""},
        "codecs": {"i8": {"largest": 0.01}},
        "decoder": None,
    }
    return json.dumps(doc | changes).encode()


@pytest.mark.parametrize(
    "measured",
    [
        {"created": "2027-01-01T00:00:00Z"},
        {"shard": {"compute_ms": 9.0}},
        {"extra": {"tolerance": 1e-5, "layers": 4, "notes": ["moved"]}},
        {"batching": {"asked": "auto", "by": "structure", "why": "off by 3e-7"}},
        {"codecs": {"i8": {"largest": 0.02}}},
    ],
)
def test_what_is_measured_makes_no_other_version(measured: dict[str, Any]) -> None:
    assert same_version(made(), made(**measured))
    assert content_digest(made()) == content_digest(made(**measured))


@pytest.mark.parametrize(
    "other",
    [
        {"shard": {"sha256": "b" * 64}},
        {"shard": {"end": 5}},
        {"model": "n"},
        {"extra": {"layers": 4, "notes": [], "tolerance": 1e-4}},
        {"batching": {"asked": "off", "by": "", "why": ""}},
        {"codecs": {"i8": {"largest": 0.01}, "f16": {"largest": 0.0}}},
        {"codecs": {}},
        {"task": {"kind": "detect"}},
        {"sealed": {"stage-1.onnx": {"sha256": "c" * 64, "bytes": 9}}},
        {"decoder": {"layers": 2, "proof": None}},
    ],
)
def test_whatever_else_differs_makes_another_version(other: dict[str, Any]) -> None:
    assert not same_version(made(), made(**other))
    assert not same_content(made(), made(**other | {"version": "2"}))
    assert content_digest(made()) != content_digest(made(**other))


def test_versions_of_the_same_content_differ_by_their_names_alone() -> None:
    assert not same_version(made(), made(version="2"))
    assert same_content(made(), made(version="2"))


@pytest.mark.parametrize("rubbish", [b"", b"[]", b"{}", b'{"shards": 3}', b"\xff", b"[" * 9999])
def test_rubbish_is_the_same_as_itself_alone(rubbish: bytes) -> None:
    assert same_version(rubbish, rubbish)
    assert not same_version(rubbish, made())
    assert content_digest(rubbish) != content_digest(made())
