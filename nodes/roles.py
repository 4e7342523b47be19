"""The roles of the core. `shard-K` is one for each K."""

from __future__ import annotations

from nodes.feature import NodeRole

SHARD = NodeRole("serves one stage.")
ROLES = {
    "fallback": NodeRole(
        "serves every stage that has lost its nodes.",
        answers=True,
        witnesses=True,
    ),
    "standby": NodeRole(
        "holds every stage warm, and takes the one that lacks nodes most, as its primary.",
        answers=True,
        witnesses=True,
    ),
    "gateway": NodeRole(
        "answers requests for any model.", answers=True, witnesses=True, of_model=False
    ),
    "edge": NodeRole("captures and asks.", answers=True),
}
