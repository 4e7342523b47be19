"""Requests that wait at a site while it is cut off from the hub."""

from __future__ import annotations

from swarm.feature import GET, MeshFeature, Row

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
        "$SRV.>": [
            # In the JetStream domain of each site.
            Row(
                "swarm.{mesh}.submit.*.*.{model}",
                "store a request that can wait",
                publish={"requester", "edge"},
            ),
            Row(
                "swarm.{mesh}.news.*",
                "a request or an answer was stored",
                publish={"requester", "edge", "gateway"},
                subscribe={"requester", "edge", "gateway"},
            ),
            Row("swarm.{mesh}.answers.*.*", "store an answer", publish={"gateway"}),
            Row("swarm.{mesh}.read.*.*", "what an agent has read", publish={"requester", "edge"}),
            Row(
                f"$JS.API.STREAM.INFO.{_SUBMITTED}",
                "what a site stores",
                publish={"requester", "edge", "gateway"},
            ),
            Row(f"$JS.API.STREAM.INFO.{_ANSWERS}", "the same", publish={"gateway"}),
            Row(f"{GET}.{_SUBMITTED}", "requests that wait", publish={"gateway"}),
            Row(
                f"{GET}.{_ANSWERS}",
                "answers, of all agents",
                publish={"requester", "edge", "gateway"},
            ),
            Row(
                f"{GET}.{_READ}", "what agents have read", publish={"requester", "edge", "gateway"}
            ),
            Row(
                f"$JS.API.STREAM.PURGE.{_SUBMITTED}", "delete what is answered", publish={"gateway"}
            ),
            Row(f"$JS.API.STREAM.PURGE.{_ANSWERS}", "delete what was read", publish={"gateway"}),
        ],
    },
)
