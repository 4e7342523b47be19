"""Compositions: models that ask others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swarm.feature import CONFIG, GET, MeshFeature, rows


def _asks(manifest: Mapping[str, Any]) -> Iterable[str]:
    part = manifest.get("composition")
    return () if part is None else part["models"].values()


FEATURE = MeshFeature(
    "compose",
    status="swarm.compose.status",
    asks=_asks,
    rights={
        f"{GET}.KV_{CONFIG}": rows(
            """
# A node that serves a composition asks its models, and has no other right to them.
swarm.{mesh}.features.{asked}.*.1.any | servers | |\
 into the lane of stage 1 of a model that is asked
swarm.{mesh}.features.{asked}.*.1.where | servers | |\
 on which linked servers are the lanes of a model that is asked?
swarm.{mesh}.cancel.{asked}.* | servers | | requests to a model that nobody waits for
<get>.KV_<config>.$KV.<config>.serve.{asked} | servers | | desired state of a model that is asked
<get>.KV_<config>.$KV.<config>.models.{asked}.* | servers | | manifests of a model that is asked
"""
        )
    },
)
