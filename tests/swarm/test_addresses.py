"""Addresses of servers: each can be one, or is refused where it is set, in words that tell why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swarm
from swarm.addresses import address, checked, without_credentials
from swarm.errors import BadAddress
from swarm.link import LinkOptions

GOOD: dict[str, list[str]] = {  # a list of servers, and where each is
    "nats://127.0.0.1:4222": ["127.0.0.1:4222"],
    "127.0.0.1": ["127.0.0.1:4222"],
    "localhost:4223": ["localhost:4223"],
    "NATS://Hub.Example:4222/": ["hub.example:4222"],
    "tls://hub.example": ["hub.example:4222"],
    "nats://a:1,nats://b:2": ["a:1", "b:2"],
    " nats://a:1 ,\tb:2\n": ["a:1", "b:2"],
    "nats://[::1]:4222": ["[::1]:4222"],
    "[::1]": ["[::1]:4222"],
    "[fe80::1%eth0]:4222": ["[fe80::1%eth0]:4222"],
    "nats://me:s%23cret@a:4222": ["a:4222"],
    "nats://t0ken@a": ["a:4222"],
    "me:secret@a:4222": ["a:4222"],
    "nats://bücher.example:4222": ["bücher.example:4222"],
    "nats_1.swarm.svc:4222": ["nats_1.swarm.svc:4222"],
}
BAD = {  # and what the refusal tells
    "": "is empty",
    " ": "is empty",
    "\n\t": "is empty",
    ",": "between the commas",
    "nats://a:1,": "between the commas",
    "nats://a:1,,nats://b:2": "between the commas",
    "nats://": "names no host",
    "nats:///": "names no host",
    "nats://:4222": "names no host",
    ":4222": "names no host",
    "nats://me:secret@:4222": "names no host",
    "nats://@a:4222": "no user stands",
    "nats://:secret@a:4222": "no user stands",
    "nats://a:": "its port",
    "nats://a:0": "its port",
    "nats://a:-1": "its port",
    "nats://a:65536": "its port",
    "nats://a:four": "its port",
    "nats://a:42 22": "a blank",
    "nats://a:1 nats://b:2": "separated by commas",
    "nats://a:1;nats://b:2": "stands more",
    "nats://a\nb:4222": "a blank",
    "nats://a\x00b": "a blank",
    "http://a:4222": "neither nats:// nor tls://",
    "ws://a:80": "WebSockets",
    "wss://a:443": "WebSockets",
    "://a:4222": "stands more",
    "nats:a:4222": "// is missing",
    "nats:/a:4222": "// is missing",
    "nats://a:4222/subject": "stands more",
    "nats://a:4222?x=1": "stands more",
    "nats://a:4222#x": "stands more",
    "nats://::1:4222": "in brackets",
    "::1": "in brackets",
    "nats://[::1:4222": "in brackets",
    "nats://[::zz]:4222": "IPv6",
    "nats://[127.0.0.1]:4222": "brackets",
    "nats://a..b:4222": "no name of a host",
    "nats://-a:4222": "no name of a host",
    "nats://a*b:4222": "no name of a host",
    "nats://" + "a" * 64 + ":4222": "no name of a host",
    "$NATS_URL": "no name of a host",
}


@pytest.mark.parametrize("given", GOOD)
def test_a_usable_address_is_taken_with_the_blanks_around_it_left_out(given: str) -> None:
    found = LinkOptions(servers=given).servers
    assert [address(server) for server in found] == GOOD[given]
    assert LinkOptions(servers=given.split(",")).servers == found


@pytest.mark.parametrize("given", BAD, ids=repr)
def test_an_address_that_cannot_be_one_is_refused_where_it_is_set(given: str) -> None:
    with pytest.raises(BadAddress, match=BAD[given]) as refused:
        swarm.connect(given)
    assert "nats://HOST:PORT" in str(refused.value) or BAD[given] != "is empty"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("given", [None, 4222, b"nats://a", [], (), [None], ["nats://a", ""]])
def test_what_is_no_text_is_refused_too(given: Any) -> None:
    with pytest.raises(BadAddress):
        swarm.connect(given)


@settings(deadline=None)
@given(st.text(max_size=40) | st.from_regex(r"(nats://|tls:|//)?[a:@/\[\]%.?# 0-9,]{0,30}"))
def test_any_text_is_a_list_of_places_or_refused(given: str) -> None:
    try:
        servers = checked(given)
    except BadAddress:
        return
    for server in servers:
        host, _, port = address(server).rpartition(":")
        assert host
        assert 0 < int(port) < 65536


@settings(deadline=None)
@given(st.text(max_size=12), st.sampled_from(["nats://", "tls://", ""]))
def test_no_refusal_shows_what_stands_in_front_of_the_host(word: str, scheme: str) -> None:
    shown = without_credentials(f"{scheme}me:5ecret{word}5ecret@host:4222")
    assert shown == f"{scheme}host:4222"


@settings(deadline=None)
@given(st.text(max_size=12), st.sampled_from(["nats://", "tls://", ""]))
def test_no_error_shows_a_password_that_made_an_address_wrong(word: str, scheme: str) -> None:
    with pytest.raises(BadAddress) as refused:
        checked(f"{scheme}me:5ecret{word}5ecret@host:4222/,")
    assert "5ecret" not in str(refused.value)
