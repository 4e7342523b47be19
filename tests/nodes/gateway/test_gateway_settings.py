"""The settings of a gateway fit together: how long it takes to leave, and what it holds."""

from __future__ import annotations

import pytest

from nodes.event_loop import STOP_LIMIT
from nodes.gateway.settings import GatewayOptions
from nodes.up.supervisor import STOP_TIMEOUT
from swarm.errors import InvalidArgument


def test_by_default_a_gateway_is_gone_before_anybody_would_kill_it() -> None:
    options = GatewayOptions(http="0", grpc="0")
    assert options.leaves_within <= min(STOP_LIMIT, STOP_TIMEOUT)


def test_a_gateway_goes_on_until_the_library_has_asked_every_client_to_go() -> None:
    both = GatewayOptions(http="0", grpc="0", settle=1.0, connection_age=5.0)
    assert both.goes_on_for == pytest.approx(1.0 + 1.1 * 5.0)
    assert GatewayOptions(http="0", settle=1.0, connection_age=5.0).goes_on_for == 1.0
    assert GatewayOptions(grpc="0", settle=1.0, connection_age=0.0).goes_on_for == 1.0


def test_room_for_less_than_one_body_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="--gateway-bodies-mb"):
        GatewayOptions(http="0", body=2_000_000, bodies=1_000_000)
