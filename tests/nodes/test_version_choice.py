"""Which version `swarm up` pushes."""

from __future__ import annotations

import json

import pytest

from nodes.up.version_choice import AUTO, KnownVersions, chosen
from shards.split.split import split
from shards.zoo import digits_model
from swarm.models.push_claim import same_version


def made(version: str, digest: str) -> bytes:
    return json.dumps(
        {"model": "m", "version": version, "created": version, "shards": [{"sha256": digest}]}
    ).encode()


NEW = made("1", "new")


def known(*names: str, readable: tuple[str, ...] | None = None, new: str = "") -> KnownVersions:
    """A mesh with these versions, one of which is `NEW`'s."""
    shown = names if readable is None else readable
    return KnownVersions(
        names, {each: made(each, "new" if each == new else each) for each in shown}
    )


@pytest.mark.parametrize(
    ("mesh", "version"),
    [
        (known(), "1"),
        (known("1", new="1"), "1"),
        (known("1", "2", "10"), "11"),
        (known("1", "2", "10", new="2"), "2"),
        (known("blue", "green", new="green"), "green"),
        (known("blue"), "1"),
        (known("1", "7", readable=()), "8"),
        (known("٣", "2"), "3"),  # Arabic digits are no number here
    ],
)
def test_auto_is_the_version_with_the_same_content_or_the_next_number(
    mesh: KnownVersions, version: str
) -> None:
    choice = chosen(AUTO, "m", NEW, mesh)
    assert choice.version == version
    assert (f"m@{version}" in choice.why) == bool(mesh.names), "it says so"


def test_a_version_that_the_user_names_is_taken_as_it_is() -> None:
    assert chosen("9", "m", NEW, known("1", new="1")).version == "9"


def test_a_file_that_is_split_again_like_a_known_version_is_that_version() -> None:
    finest = split(digits_model(), name="m", stages=5, profile=False).manifest
    names = [[tensor.name for tensor in shard.sends] for shard in finest.shards]
    for odd in (names[:2], names[2:4]):  # what is measured cannot choose both
        there = split(digits_model(), name="m", cuts=odd, profile=False).manifest
        again = split(digits_model(), name="m", stages=3, known=[finest, there]).manifest
        assert same_version(again.to_json(), there.to_json())
    assert split(digits_model(), name="m", stages=2, known=[there]).manifest.stages == 2
