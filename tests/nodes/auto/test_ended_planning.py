"""Planning beside a connection that has ended."""

from __future__ import annotations

from pathlib import Path

from support.ended import end_idle, node_of, none_turn, serve_digits

import swarm
from nodes.auto.own_link import OwnLink


async def test_probing_the_link_does_not_turn(tmp_path: Path) -> None:
    await none_turn({"own link": lambda client, _: OwnLink(lambda: client.link).run()}, tmp_path)


async def test_a_node_that_plans_does_not_turn(url: str) -> None:
    async with swarm.connect(url) as client:
        await serve_digits(client)
        await end_idle([node_of("auto", url), node_of("fallback", url)])
