"""TCP's congestion control, which a setting names."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from swarm.link.session import control_congestion

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")

pytestmark = pytest.mark.skipif(not AVAILABLE.exists(), reason="no Linux")


def test_a_link_sends_by_the_algorithm_that_is_named() -> None:
    name = AVAILABLE.read_text().split()[0]
    with socket.socket() as sock:
        assert control_congestion(sock, name)
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert told.rstrip(b"\0").decode() == name


def test_one_that_the_kernel_does_not_have_is_told_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "swarm.link"), socket.socket() as sock:
        before = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        assert not control_congestion(sock, "no-such-one")
        assert not control_congestion(sock, "no-such-one")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == before
    (record,) = caplog.records
    assert "no-such-one" in record.getMessage()
