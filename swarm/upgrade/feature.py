"""New releases of the node software, on devices, by waves."""

from __future__ import annotations

from swarm.feature import GET, MeshFeature, Row, UserRole

_UPGRADES, _RELEASES = "swarm-{mesh}-upgrades", "swarm-{mesh}-releases"

FEATURE = MeshFeature(
    "upgrade",
    roles=[
        UserRole(
            "updater",
            "brings a device to releases of the node software, and tells how far it is",
            behind="gateway",
            subscribes={"swarm.{mesh}.status.>"},
            starts='swarm fleet updater --node "--role shard-1 --model {model}"',
        )
    ],
    rights={
        "$JS.API.STREAM.INFO.OBJ_swarm-{mesh}-models": [
            # The file that an updater is given says whose releases it believes.
            Row(
                f"{GET}.KV_{_UPGRADES}.$KV.{_UPGRADES}.>",
                "releases, the wave, how far each device is",
                publish={"updater"},
            ),
            Row(f"{GET}.KV_{_UPGRADES}", "older revisions of them", publish={"updater"}),
            Row(
                f"$KV.{_UPGRADES}.device.{{user}}", "how far the own device is", publish={"updater"}
            ),
            Row(
                f"$JS.API.STREAM.INFO.KV_{_UPGRADES}",
                "which devices are there?",
                publish={"updater"},
            ),
            Row(f"{GET}.OBJ_{_RELEASES}", "files of releases", publish={"updater"}),
            Row(
                f"$JS.API.STREAM.INFO.OBJ_{_RELEASES}", "is their store there?", publish={"updater"}
            ),
        ],
        "$O.swarm-{mesh}-models.>": [
            Row(f"$KV.{_UPGRADES}.>", "releases, waves", publish={"operator"}),
            Row(f"$O.{_RELEASES}.>", "files of releases", publish={"operator"}),
        ],
    },
)
