"""How many messages a lane holds: pure functions of a model, a budget, and what the lane has now.

While a stage is away its requests wait in its lane, up to their budgets. A lane that is deeper than
the longest budget does not help: the budgets of its last messages end before their turn. So the
depth follows the longest budget in use, and is bounded in messages and in bytes.
"""

from __future__ import annotations

from typing import NamedTuple

from swarm.model import ModelInfo

BUDGET_SHARE = 0.6  # of a budget that the wait in one lane may take, as a requester's gate has it
LEAST_SECONDS = 0.25  # of work that a lane holds, however short the budgets
LEAST_DEPTH, MOST_DEPTH = 16, 4096  # messages
FEWEST_LARGE = 4  # messages of a lane, however large they are
LANE_BYTES = 256 << 20  # of one lane's messages, at their usual shapes
# A stage gets as many bytes as all stages together, up to so many: batches and free dimensions make
# messages larger than the manifest knows, and a server has so few to set aside.
SHARED_BYTES = 4 << 20
MESSAGE_ROOM = 4096  # bytes of a message beside its tensors
# A change of the depth is a change of the stream: only differences of more than this factor pay.
HYSTERESIS = 1.5
WINDOW = 60.0  # seconds for which a budget counts as in use, and up to twice as long


class Depth(NamedTuple):
    """messages: in one lane, those at work included. stage_bytes: of all lanes of a stage together,
    from stage 1 on."""

    messages: int
    stage_bytes: tuple[int, ...]


def depth_for(info: ModelInfo, budget: float) -> Depth:
    """The depth of a model version's lanes where the longest budget is `budget` seconds."""
    slowest = max(stage.compute_ms for stage in info.stages) / 1e3
    seconds = max(LEAST_SECONDS, BUDGET_SHARE * budget)
    wanted = min(MOST_DEPTH, max(LEAST_DEPTH, seconds / max(slowest, 1e-6)))
    sizes = [MESSAGE_ROOM + sum(spec.nbytes for spec in stage.receives) for stage in info.stages]
    messages = int(min(wanted, max(FEWEST_LARGE, LANE_BYTES // max(sizes))))
    least = min(SHARED_BYTES, messages * sum(sizes))
    return Depth(messages, tuple(max(least, messages * size) for size in sizes))


def changed_depth(present: int, wanted: int, held: int) -> bool:
    """Whether lanes of depth `present` are to get the depth `wanted`.

    held: messages in all lanes together. A server that makes a lane shallower removes the messages
    beyond the new depth: that is done only while there are few."""
    if wanted > present * HYSTERESIS:
        return True
    return wanted * HYSTERESIS < present and held < wanted // 2


class Budgets:
    """The longest budget in use, as one node sees it. `now` is `time.monotonic()`.

    usual: seconds, the budget of requests that name none; it counts until a window is over, and
    where nothing was asked."""

    def __init__(self, usual: float, now: float) -> None:
        self._usual = usual
        self._since = now
        self._present = 0.0
        self._before = usual

    def seen(self, longest: float, now: float) -> None:
        """The longest budget since the last call; 0.0 where nothing was asked."""
        if now - self._since >= WINDOW:
            self._before, self._present, self._since = self._present, 0.0, now
        self._present = max(self._present, longest)

    @property
    def longest(self) -> float:
        """Seconds."""
        return max(self._present, self._before) or self._usual
