"""Requests that wait at a site while it is cut off from the hub."""

from __future__ import annotations

from swarm.feature import MeshFeature, rows

_SUBMITTED, _ANSWERS, _READ = (
    f"SWARM={{mesh}}={kind}" for kind in ("submitted", "answers", "read")
)


def _of_mesh() -> type:
    from swarm.sites.of_mesh import Submits

    return Submits


FEATURE = MeshFeature(
    "sites",
    of_mesh=_of_mesh,
    rights={
        "$SRV.>": rows(
            """
# In the JetStream domain of each site.
swarm.{mesh}.submit.*.*.{model} | requester edge | | store a request that can wait
swarm.{mesh}.news.* | requester edge gateway | requester edge gateway |\
 a request or an answer was stored
swarm.{mesh}.answers.*.* | gateway | | store an answer
swarm.{mesh}.read.*.* | requester edge | | what an agent has read
$JS.API.STREAM.INFO.<submitted> | requester edge gateway | | what a site stores
$JS.API.STREAM.INFO.<answers> | gateway | | the same
<get>.<submitted> | gateway | | requests that wait
<get>.<answers> | requester edge gateway | | answers, of all agents
<get>.<read> | requester edge gateway | | what agents have read
$JS.API.STREAM.PURGE.<submitted> | gateway | | delete what is answered
$JS.API.STREAM.PURGE.<answers> | gateway | | delete what was read
""",
            answers=_ANSWERS,
            read=_READ,
            submitted=_SUBMITTED,
        ),
    },
)
