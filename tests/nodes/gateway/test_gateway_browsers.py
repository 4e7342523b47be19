"""Pages in browsers ask a gateway where their origin is listed, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from nodes.gateway.access.browsers import LOOPBACK_NAMES, Browsers, Receive, Scope, Send

LISTED = "https://example.org"


def asked(
    headers: dict[str, str], names: tuple[str, ...] = (), method: str = "POST"
) -> tuple[int, dict[str, str]]:
    """Code and headers of the answer; 200 is the application's."""
    sent: list[MutableMapping[str, Any]] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "headers": pairs}
    asyncio.run(Browsers(application, [LISTED], names)(scope, receive, send))
    start = sent[0]
    return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}


def test_programs_and_the_gateways_own_page_ask() -> None:
    assert asked({"host": "gateway:8000"}) == (200, {})
    own = {"host": "gateway:8000", "origin": "http://gateway:8000"}
    assert asked(own) == (200, {})


def test_a_page_of_a_listed_origin_asks_and_reads() -> None:
    page = {"host": "gateway:8000", "origin": LISTED}
    code, headers = asked(page)
    assert (code, headers["access-control-allow-origin"]) == (200, LISTED)
    assert "inference-header-content-length" in headers["access-control-expose-headers"]
    code, headers = asked(page, method="OPTIONS")
    assert (code, headers["access-control-allow-origin"]) == (204, LISTED)
    assert "inference-header-content-length" in headers["access-control-allow-headers"]


@pytest.mark.parametrize("origin", ["https://example.org.evil", "null", "http://example.org"])
def test_a_page_of_another_origin_reaches_no_model(origin: str) -> None:
    code, headers = asked({"host": "gateway:8000", "origin": origin})
    assert code == 403
    assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000"])
def test_on_loopback_a_gateway_has_its_own_names(host: str) -> None:
    assert asked({"host": host}, LOOPBACK_NAMES)[0] == 200


def test_a_page_that_points_its_own_name_at_loopback_gets_nothing() -> None:
    rebound = {"host": "evil.example:8000", "origin": "http://evil.example:8000"}
    assert asked(rebound, LOOPBACK_NAMES)[0] == 403
    assert asked({"host": ""}, LOOPBACK_NAMES)[0] == 403


def test_a_probe_of_http_1_0_names_no_host() -> None:
    assert asked({}, LOOPBACK_NAMES, "GET")[0] == 200
