"""New releases of the node software, on devices, by waves."""

from __future__ import annotations

from swarm.feature import MeshFeature, UserRole, rows

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
        "$JS.API.STREAM.INFO.OBJ_swarm-{mesh}-models": rows(
            """
# The file that an updater is given says whose releases it believes.
<get>.KV_<upgrades>.$KV.<upgrades>.> | updater | | releases, the wave, how far each device is
<get>.KV_<upgrades> | updater | | older revisions of them
$KV.<upgrades>.device.{user} | updater | | how far the own device is
$JS.API.STREAM.INFO.KV_<upgrades> | updater | | which devices are there?
<get>.OBJ_<releases> | updater | | files of releases
$JS.API.STREAM.INFO.OBJ_<releases> | updater | | is their store there?
""",
            releases=_RELEASES,
            upgrades=_UPGRADES,
        ),
        "$O.swarm-{mesh}-models.>": rows(
            """
$KV.<upgrades>.> | operator | | releases, waves
$O.<releases>.> | operator | | files of releases
""",
            releases=_RELEASES,
            upgrades=_UPGRADES,
        ),
    },
)
