"""A file of devices says what it is missing."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.auto.devices import MOST_DEVICES, read_fleet
from shards.auto.problem import Device, JpegCost
from shards.errors import PlanError

FILE = """
source = "camera"
stays = true
usual_link = { mbit_s = 100, rtt_ms = 2 }
codecs = ["none", "i8"]

[[device]]
name = "camera"
speed = 0.25
memory = "512 MB"
site = "hall"

[[device]]
name = "box"
count = 2
site = "rack"
share = 0.5
period_ms = 10

[[link]]
between = ["hall", "rack"]
mbit_s = 20
rtt_ms = 10
"""


def test_a_file_becomes_devices_links_and_codecs() -> None:
    fleet = read_fleet(FILE)
    assert [device.name for device in fleet.devices] == ["camera", "box-1", "box-2"]
    assert fleet.devices[0].memory == 512e6
    assert fleet.devices[1].memory == inf
    assert [(each.share, each.period_ms) for each in fleet.devices[:2]] == [(1.0, 100), (0.5, 10)]
    assert fleet.links["hall", "rack"].rate == 2.5e6
    assert fleet.link.rtt_ms == 2
    assert [codec.name for codec in fleet.codecs] == ["none", "i8"]
    assert (fleet.source, fleet.stays, fleet.picture) == ("camera", True, None)


def test_a_file_tells_as_which_picture_an_input_may_leave() -> None:
    jpeg = "jpeg = { kb = 14, encode_ms = 0.5, decode_ms = 0.25 }"
    assert read_fleet(FILE.replace("stays = true", jpeg)).picture == JpegCost(14_000, 0.5, 0.25)


@pytest.mark.parametrize(
    ("was", "wrong", "says"),
    [
        ("speed = 0.25", "sped = 0.25", "no field is named 'sped'"),
        ("speed = 0.25", "speed = 'fast'", "no number"),
        ("speed = 0.25", "speed = nan", "no number"),
        ('"512 MB"', "512", "memory: as"),
        ('"512 MB"', '"512 MiB"', "memory: as"),
        ("count = 2", "count = 0", "count: 1 to"),
        ("count = 2", f"count = {MOST_DEVICES}", "at most"),
        ("count = 2", "count = true", "no int"),
        ('["hall", "rack"]', '["hall"]', "between: two sites"),
        ("mbit_s = 20", "mbit_s = 0", "above 0"),
        ('"i8"]', '"i9"]', "codecs: some of"),
        ('name = "camera"\n', "", "a device without a name"),
        ("[[link]]", "[[links]]", "no field is named 'links'"),
        ("[[device]]", "[device]", "no TOML"),
        ("stays = true", "jpeg = 14", "jpeg: no table"),
        ("stays = true", "jpeg = { kb = 0 }", "kb is above 0"),
        ("stays = true", "stays = true\njpeg = { kb = 9 }", "need not stay"),
        ("source", "source source", "no TOML"),
    ],
)
def test_a_file_with_a_fault_is_refused_and_the_field_named(
    was: str, wrong: str, says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        read_fleet(FILE.replace(was, wrong, 1))


def test_a_quota_lets_a_lone_request_run_until_it_is_used_up_and_then_in_its_share() -> None:
    box = read_fleet(FILE).devices[1]
    most = box.at_once_ms
    assert 5.0 <= most < 10.0
    assert [box.lone_ms(ms) for ms in (2.0, most, most + 3)] == [2.0, most, most + 6]
    assert Device("whole").lone_ms(500.0) == 500.0


@given(st.text(max_size=80))
def test_any_text_is_refused_by_name(text: str) -> None:
    with pytest.raises(PlanError):
        read_fleet(text)
