"""A device goes to another release of the node software, or back, and serves meanwhile."""

from __future__ import annotations

import asyncio
import json
import subprocess
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.meshes import READY, Load, mesh_of, split_digits
from support.upgrades import (
    DIES,
    FIRST,
    QUICK,
    Publisher,
    adopted,
    node_arguments,
    node_processes,
    release_folder,
    running,
    updater,
)
from support.waiting import eventually

from nodes.up.mesh import push
from nodes.upgrade.device import Phase, RunningRelease
from nodes.upgrade.environments import Environments, RecordFile
from nodes.upgrade.release import release_of
from nodes.upgrade.units import MAIN
from nodes.upgrade.updater import Updater
from nodes.upgrade.wave import Wave
from swarm.errors import Unavailable
from swarm.link import LinkOptions
from swarm.security.identity import Identity

pytestmark = [pytest.mark.integration, pytest.mark.processes]

NEXT = "1.1"
QUICKER = replace(QUICK, ready=0.5)


def wave(version: str = NEXT, **more: object) -> Wave:
    return Wave("w1", version, **({"step": 100.0, "every": 0.1, "enrol": 0.3} | more))  # type: ignore[arg-type]


async def test_a_device_goes_to_a_release_under_requests_though_its_updater_is_killed_on_the_way(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("d")  # a socket's path is short
    result = split_digits(stages=1)
    async with mesh_of() as local:
        await push(local, result.manifest.to_json(), result.files)
        publisher = Publisher(local, home / "publisher")
        environments = adopted(home)
        nodes = [node_arguments(local, "shard-1")]
        async with node_processes(environments, nodes) as units:
            first = updater(publisher, home, units)
            async with running(first) as task:
                await eventually_ready(units)
                await publisher.push(NEXT)
                load = Load(local.mesh, rate=40.0)
                async with load.steady():
                    await load.answers(5)
                    await publisher.releases().begin(wave())
                    trying = f"it tries the release: {first.record}"
                    await eventually(
                        lambda: first.record.phase is Phase.SWITCHING or task.done(), trying, READY
                    )
                    task.cancel()
                    await asyncio.wait([task])
                    async with running(updater(publisher, home, units)) as after:
                        await eventually(
                            lambda: is_at(home, NEXT) or after.done(), "it is there", READY
                        )
                        await load.answers(5)
            assert (await units.seen(MAIN)).version == NEXT


def is_at(home: Path, version: str) -> bool:
    record = RecordFile(home / "record.json").read()
    return record is not None and (record.phase, record.good) == (Phase.IDLE, version)


async def eventually_ready(units: object) -> None:
    async def is_ready() -> bool:
        seen: RunningRelease = await units.seen(MAIN)  # type: ignore[attr-defined]
        return seen.ready

    await eventually(is_ready, "main is ready", READY)


# --- without processes --------------------------------------------------------------------


@dataclass
class Imitated:
    """Nodes that are ready at once, but those of bad releases."""

    environments: Environments
    bad: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)
    unserved: int = 0

    async def seen(self, which: str) -> RunningRelease:
        version = self.running.get(which, "")
        return RunningRelease(bool(version), bool(version) and version not in self.bad, version)

    async def start_main(self) -> None:
        self.running[MAIN] = self.environments.current()

    async def restart_main(self) -> None:
        self.unserved += "trial" not in self.running
        self.running[MAIN] = self.environments.current()

    async def start_trial(self, version: str) -> None:
        self.running["trial"] = version

    async def stop_trial(self) -> None:
        del self.running["trial"]


@dataclass
class Rig:
    publisher: Publisher
    units: Imitated
    one: Updater

    async def refuses(self) -> str:
        await self.publisher.releases().begin(wave())
        await eventually(lambda: self.one.record.refused, f"{self.one.record}")
        await eventually(lambda: self.one.record.phase is Phase.IDLE, f"{self.one.record}")
        assert (self.one.record.good, self.units.running) == (FIRST, {MAIN: FIRST})
        return self.one.record.refused


async def test_a_release_that_is_not_to_be_trusted_is_refused_and_stops_its_wave(
    tmp_path: Path,
) -> None:
    async with mesh_of() as local:
        publisher = Publisher(local, tmp_path / "publisher")
        environments = adopted(tmp_path)
        units = Imitated(environments)
        one = updater(publisher, tmp_path, units)
        folder = release_folder(tmp_path / "forged")
        stranger = publisher.releases(Identity.make())
        await stranger.push(folder, release_of(folder, NEXT))
        async with running(one):
            rig = Rig(publisher, units, one)
            assert "which is not in" in await rig.refuses()

            async def is_told() -> bool:
                words = await publisher.releases().devices()
                return bool(words["device-1"].refused)

            await eventually(is_told, "the fleet hears of it")


async def test_a_release_whose_files_were_changed_on_the_server_is_refused(tmp_path: Path) -> None:
    async with mesh_of() as local:
        publisher = Publisher(local, tmp_path / "publisher")
        units = Imitated(adopted(tmp_path))
        one = updater(publisher, tmp_path, units)
        folder = release_folder(tmp_path / "release")
        release = release_of(folder, NEXT)
        # The bytes change between the hash and the store.
        (folder / "install").write_bytes((folder / "install").read_bytes().replace(b"755", b"777"))
        await publisher.releases().push(folder, release)
        async with running(one):
            assert "another hash" in await Rig(publisher, units, one).refuses()


@pytest.mark.parametrize("how", ["cannot be installed", "does not become ready"])
async def test_a_bad_release_is_left_and_what_served_before_serves_on(
    tmp_path: Path, how: str
) -> None:
    async with mesh_of() as local:
        publisher = Publisher(local, tmp_path / "publisher")
        units = Imitated(adopted(tmp_path))
        one = updater(publisher, tmp_path, units)
        if how == "cannot be installed":
            await publisher.push(NEXT, "exit 3")
        else:
            units.bad.add(NEXT)
            one = updater(publisher, tmp_path, units, limits=QUICKER)
            await publisher.push(NEXT, DIES)
        async with running(one):
            reason = await Rig(publisher, units, one).refuses()
    assert reason.startswith("swarm-node ended with 3" if "install" in how else "not ready within")
    assert units.unserved == 0


async def test_under_rights_an_updater_may_do_what_it_needs_and_tell_of_its_own_device_alone(
    tmp_path: Path,
) -> None:
    async with mesh_of(secure=True) as local:
        assert local.rights is not None
        assert local.server is not None
        publisher = Publisher(local, tmp_path / "publisher")
        access = local.rights.issue("updater")
        user = LinkOptions(servers=(local.url,), **access.options()).connects_as
        units = Imitated(adopted(tmp_path))
        one = updater(publisher, tmp_path, units, user, access=access)
        await publisher.push(NEXT)
        async with running(one):
            await publisher.releases().begin(wave(guard="slo"))
            await eventually(lambda: one.record.good == NEXT, f"{one.record}")
        assert "iolation" not in local.server.log


async def test_a_release_that_burns_an_objective_is_left_and_nobody_begins_meanwhile(
    tmp_path: Path,
) -> None:
    async with mesh_of() as local:
        publisher = Publisher(local, tmp_path / "publisher")
        units = Imitated(adopted(tmp_path))
        one = updater(publisher, tmp_path, units, limits=replace(QUICK, proof=60.0))
        await publisher.push(NEXT)
        mesh = local.mesh
        status = {"slo": [{"model": "digits", "burning": "errors"}]}

        def burns() -> None:
            mesh.link.publish(mesh.subjects.status("node-1"), json.dumps(status).encode())

        def is_refused() -> bool:
            burns()
            return bool(one.record.refused)

        async with running(one):
            await publisher.releases().begin(wave(guard="slo"))
            await eventually(lambda: one.record.phase is Phase.TRYING, f"{one.record}")
            await eventually(is_refused, f"{one.record}")
            assert "objective of digits burns: errors" in one.record.refused
            await eventually(lambda: one.record.phase is Phase.IDLE, f"{one.record}")
            await publisher.releases().begin(replace(wave(guard="slo"), id="w2"))

            async def it_tells_why() -> bool:
                burns()
                words = await publisher.releases().devices()
                return "burns" in words["device-1"].holds

            await eventually(it_tells_why, "it holds")
            assert (one.record.wave, one.record.phase) == ("w1", Phase.IDLE)


@pytest.mark.benchmark
async def test_an_environment_is_made_of_the_wheels_of_a_release_alone(tmp_path: Path) -> None:
    """By venv and pip; the wheel holds a program, and nothing else."""
    environments = Environments(tmp_path)
    files = environments.files(NEXT)
    files.mkdir(parents=True)
    about = "swarm_mesh-1.1.dist-info"
    inside = {
        "tiny.py": "def main(): print('a node')",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: swarm-mesh\nVersion: 1.1\n"
        "Provides-Extra: node\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "[console_scripts]\nswarm-node = tiny:main\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(files / "swarm_mesh-1.1-py3-none-any.whl", "w") as wheel:
        for name, text in inside.items():
            wheel.writestr(name, text)
    release = release_of(files)
    assert release.version == NEXT
    assert not environments.is_made(NEXT)
    await environments.make(release)
    assert environments.is_made(NEXT)
    said = await asyncio.to_thread(
        subprocess.check_output, [environments.program(NEXT)], text=True, timeout=30
    )
    assert said == "a node\n"


async def test_a_second_updater_of_a_home_is_refused(tmp_path: Path) -> None:
    async with mesh_of() as local:
        publisher = Publisher(local, tmp_path / "publisher")
        units = Imitated(adopted(tmp_path))
        async with running(updater(publisher, tmp_path, units)):
            await eventually(lambda: units.running, "the first one serves")
            with pytest.raises(Unavailable, match="another updater"):
                await updater(publisher, tmp_path, units).run()
