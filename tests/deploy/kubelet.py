"""What a kubelet makes of the pods of a chart, as services that are played: Secrets and volumes
with their owners and modes, names of services, probes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composing import IMAGES
from playing import Machine, Mount, Service

REVISION = "..2026_01_01_00_00_00.0"  # a Secret's files are links into `..data`, a link to this


@dataclass(frozen=True)
class Pod:
    """One replica. labels: by which services select it. probes: of `startup`, `liveness` and
    `readiness` the path and the port."""

    service: Service
    labels: dict[str, str]
    probes: dict[str, tuple[str, int]]


class Kubelet:
    """documents: of a chart. secrets: the files of each Secret, by its name. volumes: a folder for
    what outlives a pod, and for what does not. generation: in the names of pods of Deployments,
    whose pods of another template have names of their own."""

    def __init__(
        self,
        documents: list[dict[str, Any]],
        secrets: dict[str, dict[str, bytes]],
        volumes: Path,
        generation: str = "a",
    ) -> None:
        self._documents = documents
        self._generation = generation
        self._secrets = secrets
        self._volumes = volumes
        self.pods = {pod.service.name: pod for pod in self._pods()}

    def names(self) -> dict[str, list[str]]:
        """The pods that each service's name stands for; with a StatefulSet's own names of its pods.
        One address for each: which one kube-proxy would take of several is not played."""
        found: dict[str, list[str]] = {}
        for document in self._of("Service"):
            name, selector = document["metadata"]["name"], document["spec"]["selector"]
            chosen = [n for n, pod in self.pods.items() if selector.items() <= pod.labels.items()]
            found[name] = chosen
            if document["spec"].get("clusterIP") == "None":
                found |= {f"{pod}.{name}": [pod] for pod in chosen}
        return found

    def says_yes(self, machine: Machine, name: str, probe: str = "readiness") -> bool:
        """Call a probe of a pod, as the kubelet does: by its address."""
        path, port = self.pods[name].probes[probe]
        url = f"http://{machine.address(name)}:{port}{path}"
        script = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3)"
        words = [*machine.within(name), "python3", "-c", script, url]
        return subprocess.run(words, capture_output=True, timeout=30, check=False).returncode == 0

    def _of(self, *kinds: str) -> Iterator[dict[str, Any]]:
        return (document for document in self._documents if document["kind"] in kinds)

    def _pods(self) -> Iterator[Pod]:
        for document in self._of("Deployment", "StatefulSet"):
            name = document["metadata"]["name"]
            name += f"-{self._generation}" if document["kind"] == "Deployment" else ""
            for number in range(document["spec"].get("replicas", 1)):
                yield self._pod(document, f"{name}-{number}")

    def _pod(self, document: dict[str, Any], name: str) -> Pod:
        template = document["spec"]["template"]
        spec, (container,) = template["spec"], template["spec"]["containers"]
        context, own = spec["securityContext"], container["securityContext"]
        assert context["runAsNonRoot"] is True
        group = context["fsGroup"]
        claims = document["spec"].get("volumeClaimTemplates", [])
        given = {each["name"]: each for each in spec.get("volumes", [])}
        given |= {each["metadata"]["name"]: {"claim": True} for each in claims}
        laid = {
            volume: self._laid(each, f"{name}-{volume}", group) for volume, each in given.items()
        }
        image, _, tag = container["image"].rpartition(":")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        probes = {
            each.removesuffix("Probe"): (asked["path"], ports[asked["port"]])
            for each in ("startupProbe", "livenessProbe", "readinessProbe")
            for asked in [container[each]["httpGet"]]
        }
        environment = {
            each["name"]: each["value"] if "value" in each else _field(each["valueFrom"], name)
            for each in container.get("env", [])
        }
        hook = container.get("lifecycle", {}).get("preStop", {"exec": {"command": []}})
        service = Service(
            name=name,
            image=IMAGES[image],
            tag=tag,
            arguments=[_expanded(word, environment) for word in container["args"]],
            environment=environment,
            before_the_end=hook["exec"]["command"],
            user=context["runAsUser"],
            group=context["runAsGroup"],
            groups=(group,),
            folder=container.get("workingDir", "" if IMAGES[image] == "nats" else "/run/swarm"),
            read_only=own["readOnlyRootFilesystem"],
            keeps_capabilities="ALL" not in own["capabilities"]["drop"],
            mounts=[
                Mount(
                    _part(laid[each["name"]], each.get("subPath", ""), group),
                    each["mountPath"],
                    each.get("readOnly", False),
                )
                for each in container["volumeMounts"]
            ],
        )
        return Pod(service, template["metadata"]["labels"], probes)

    def _laid(self, volume: dict[str, Any], name: str, group: int) -> Path:
        folder = self._volumes / name
        if folder.exists():
            return folder
        folder.mkdir(parents=True)
        if "secret" in volume:
            self._write_secret(volume["secret"], folder)
        elif "configMap" in volume:
            self._write_files(self._config_map(volume["configMap"]["name"]), folder, 0o644)
        _give_to_group(folder, group, writable=not {"secret", "configMap"} & set(volume))
        return folder

    def _config_map(self, name: str) -> dict[str, bytes]:
        (found,) = [d for d in self._of("ConfigMap") if d["metadata"]["name"] == name]
        return {key: text.encode() for key, text in found["data"].items()}

    def _write_secret(self, secret: dict[str, Any], folder: Path) -> None:
        files = self._secrets[secret["secretName"]]
        if "items" in secret:
            files = {item["path"]: files[item["key"]] for item in secret["items"]}
        self._write_files(files, folder, secret.get("defaultMode", 0o644))

    def _write_files(self, files: dict[str, bytes], folder: Path, mode: int) -> None:
        revision = folder / REVISION
        revision.mkdir()
        (folder / "..data").symlink_to(REVISION)
        for name, data in files.items():
            (revision / name).write_bytes(data)
            (revision / name).chmod(mode)
            (folder / name).symlink_to(f"..data/{name}")


def _field(source: dict[str, Any], name: str) -> str:
    assert source == {"fieldRef": {"fieldPath": "metadata.name"}}
    return name


def _expanded(word: str, environment: dict[str, str]) -> str:
    """`$(NAME)` of arguments."""
    return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)


def _part(volume: Path, name: str, group: int) -> Path:
    """A folder in a volume, which the kubelet makes with the volume's own mode and group."""
    if not name:
        return volume
    part = volume / name
    part.mkdir(exist_ok=True)
    os.chown(part, 0, group)
    part.chmod(volume.stat().st_mode & 0o7777)
    return part


def _give_to_group(folder: Path, group: int, *, writable: bool) -> None:
    """As the kubelet does for fsGroup (`pkg/volume/volume_linux.go`): the group may read, and write
    where the volume may be written; folders pass it on."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode & 0o7777 | (0o660 if writable else 0o440)
        if path.is_dir():
            mode |= 0o2110
        os.chown(path, 0, group)
        path.chmod(mode)
