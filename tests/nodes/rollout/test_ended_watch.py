"""Who watches rollouts beside a connection that has ended."""

from __future__ import annotations

from pathlib import Path

from support.ended import none_turn

from nodes.rollout.watched import RolloutWatch


async def test_no_loop_of_who_watches_rollouts_turns(tmp_path: Path) -> None:
    loops = {
        "rollouts": lambda client, _: RolloutWatch(
            client.link, client.subjects, client.registry, lambda: ["digits"]
        ).run()
    }
    await none_turn(loops, tmp_path)
