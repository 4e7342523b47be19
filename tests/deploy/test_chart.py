"""The Helm chart, rendered by a real helm, fits Kubernetes, and refuses what it cannot mean.

`test_chart_plays.py` starts the pods. No cluster runs here, and without an API server kubectl
judges no document: `kubectl apply --dry-run=client` asks one for schemas and kinds.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from charts import CHART, HELM_3, fetch_helm, render, schemas_of_operators
from playing import CONTAINERFILE
from support.commands import said
from support.meshes import split_digits

from shards.manifest import write_dir

OUTSIDE = ("nats.enabled=false", "nats.url=nats://192.0.2.1:4222")
IDLE_NODE = 94_000_000  # bytes, as the README has it
VERSIONS = ("1.27", "1.31", "1.34")
ERRORS = (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError)
OWN_KINDS = {"ScaledObject", "ServiceMonitor"}  # of operators: Kubernetes has no schema of them
SECRETS = ("credentials.secret=c", "nats.secret=n", "gateway.secret=g")
SETTINGS = {
    "as it is": (),
    "closed, with a GPU": (*SECRETS, "stages[0].gpus=1", "standby.replicas=1"),
    "scaled by keda": ("autoscaling.kind=keda", "metrics.serviceMonitor=true"),
    "scaled by processor time": ("autoscaling.kind=hpa", "antiAffinity=required"),
    "three servers": ("nats.replicas=3", *SECRETS),
    "cameras": ("cameras[0].name=hall", "cameras[0].source=rtsp://192.0.2.2/1", *SECRETS),
    "a language model": ("language=true", "standby.replicas=1"),
    "a server outside": OUTSIDE,
}


def validate(document: dict[str, Any], version: str) -> None:
    if document["kind"] not in OWN_KINDS:
        kubernetes_validate.validate(document, version, strict=True)


def refusal(helm: Path, *settings: str) -> str:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, *settings)
    told: str = refused.value.stderr
    return told


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod specifications by role."""
    with_pods = [d for d in documents if d["kind"] in ("Deployment", "StatefulSet")]
    return {
        d["spec"]["template"]["metadata"]["labels"]["swarm/role"]: d["spec"]["template"]["spec"]
        for d in with_pods
    }


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_what_the_chart_renders_is_valid_in_each_version_of_kubernetes(
    helm: Path, settings: tuple[str, ...]
) -> None:
    documents = render(helm, *settings)
    assert len(documents) > 8
    for version in VERSIONS:
        for document in documents:
            validate(document, version)


def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    subprocess.run([helm, "lint", "--strict", CHART], check=True, capture_output=True, timeout=60)


@pytest.mark.benchmark
def test_helm_3_renders_what_helm_4_renders(helm: Path, tmp_path: Path) -> None:
    older = fetch_helm(tmp_path, HELM_3)
    subprocess.run([older, "lint", "--strict", CHART], check=True, capture_output=True, timeout=60)
    for settings in SETTINGS.values():
        assert render(older, *settings) == render(helm, *settings)


@pytest.mark.benchmark
def test_what_operators_are_told_is_what_their_definitions_name(helm: Path, tmp_path: Path) -> None:
    schemas = schemas_of_operators(tmp_path)
    documents = [d for d in render(helm, *SETTINGS["scaled by keda"]) if d["kind"] in OWN_KINDS]
    assert {document["kind"] for document in documents} == OWN_KINDS
    for document in documents:
        schema = schemas[document["kind"]]
        jsonschema.validate(document, schema)
        for planted in ({"replica": 2}, {"triggers": "x", "endpoints": "x"}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate(document | {"spec": document["spec"] | planted}, schema)


@pytest.mark.parametrize(
    "planted",
    [
        {"apiVersion": "apps/v1beta1"},
        {"spec": {"replicas": "two"}},
        {"spec": {"replica": 2}},
    ],
    ids=["a version that is gone", "a word for a number", "a misspelt key"],
)
def test_a_planted_error_is_found(helm: Path, planted: dict[str, Any]) -> None:
    named = [d for d in render(helm) if d["metadata"]["name"] == "x-shard-1"]
    (document,) = [d for d in named if d["kind"] == "Deployment"]
    validate(document, VERSIONS[1])
    spec = document["spec"] | planted.get("spec", {})
    with pytest.raises(ERRORS):
        validate(document | planted | {"spec": spec}, VERSIONS[1])


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("replica=3", "replica"),
        ("stages[0].replicas=0", "replicas"),
        ("autoscaling.kind=vpa", "kind"),
        ("autoscaling.kind=objectives", "keda alone"),
        ("model=a b", "model"),
        ("nats.enabled=false", "nats.url"),
        ("nats.url=http://x", "url"),
        ("nats.replicas=2", "replicas"),
        ("cameras[0].name=hall", "source"),
        ("cameras[0].name=Hall", "name"),
    ],
)
def test_a_value_that_means_nothing_is_refused_by_name(
    helm: Path, setting: str, reason: str
) -> None:
    assert reason in refusal(helm, setting)


@pytest.mark.parametrize(
    ("settings", "reasons"),
    [
        (("nats.url=nats://o:4222",), ["nats.url", "nats.enabled=false"]),
        (("credentials.secret=c",), ["credentials.secret", "nats.secret"]),
        (("nats.secret=n",), ["nats.secret", "credentials.secret"]),
        ((*OUTSIDE, "nats.secret=n"), ["nats.secret", "nats.enabled"]),
        ((*OUTSIDE, "nats.replicas=3"), ["nats.replicas", "nats.enabled"]),
        ((*OUTSIDE, "nats.maxPayload=32MB"), ["nats.maxPayload", "nats.enabled"]),
        ((*OUTSIDE, "nats.storage=20Gi"), ["nats.storage", "nats.enabled"]),
        ((*OUTSIDE, "nats.storageClass=fast"), ["nats.storageClass", "nats.enabled"]),
        ((*OUTSIDE, "nats.image=nats:2"), ["nats.image", "nats.enabled"]),
        ((*OUTSIDE, "nats.resources.limits.memory=4Gi"), ["nats.resources", "nats.enabled"]),
        (("gateway.http=8001",), ["gateway.http", "port of its own"]),
        (("gateway.grpc=9464",), ["gateway.grpc", "metrics.port", "port of its own"]),
        (("metrics.port=8000",), ["metrics.port", "port of its own"]),
        (("gateway.replicas=0", "gateway.secret=g"), ["gateway.secret", "gateway.replicas"]),
        (("gateway.replicas=0", "gateway.http=80"), ["gateway.http", "gateway.replicas"]),
        (
            ("gateway.replicas=0", "gateway.service.type=NodePort"),
            ["gateway.service", "gateway.replicas"],
        ),
        (("autoscaling.most=9",), ["autoscaling.most", "autoscaling.kind"]),
        (("autoscaling.cpu=50",), ["autoscaling.cpu", "autoscaling.kind"]),
        (("autoscaling.kind=keda", "autoscaling.cpu=50"), ["autoscaling.cpu", "keda"]),
        (
            ("autoscaling.kind=hpa", "autoscaling.prometheus=http://p:9090"),
            ["autoscaling.prometheus", "hpa"],
        ),
        (
            ("autoscaling.kind=hpa", "autoscaling.most=1", "stages[0].replicas=3"),
            ["autoscaling.most 1", "stages[0].replicas 3"],
        ),
        (
            ("autoscaling.kind=hpa", "stages[0].resources.requests.memory=1Gi"),
            ["autoscaling.kind", "stages[0].resources.requests.cpu"],
        ),
        (
            (
                *("cameras[0].name=hall", "cameras[0].source=a"),
                *("cameras[1].name=hall", "cameras[1].source=b"),
            ),
            ["cameras", "hall"],
        ),
        (
            ("networkPolicy.enabled=false", "networkPolicy.clients[0].podSelector.matchLabels.a=b"),
            ["networkPolicy.clients", "networkPolicy.enabled"],
        ),
        (("arguments={--mesh,other}",), ["arguments", "--mesh"]),
        (("arguments={--metrics-port=1}",), ["arguments", "--metrics-port"]),
    ],
    ids=str,
)
def test_two_values_that_exclude_each_other_are_refused_by_name(
    helm: Path, settings: tuple[str, ...], reasons: list[str]
) -> None:
    told = refusal(helm, *settings)
    assert [reason for reason in reasons if reason not in told] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nats.maxPayload", "100MB"),
        ("nats.maxPayload", "65537KB"),
        ("nats.maxPayload", "99999999999999999999MB"),
        ("nats.maxPayload", "512KB"),
        ("nats.storage", "tenGi"),
        ("nats.storageClass", "a b"),
        ("nats.image", "nats:2.12 alpine"),
        ("nats.secret", "A b"),
        ("resources.requests.memory", "lots"),
        ("image.node", "swarm-node:0.1.0"),
        ("image.tag", "a b"),
        ("autoscaling.prometheus", "prometheus:9090"),
    ],
)
def test_a_malformed_value_is_refused_by_name(helm: Path, name: str, value: str) -> None:
    assert name.replace(".", "/") in refusal(helm, f"{name}={value}").replace(".", "/")


@pytest.mark.parametrize(
    ("url", "right"),
    [
        (r"nats://u:p%40@o:4222\,tls://[::1]:4222/", True),
        ("tls://nats.example.com", True),
        ("nats://o:65535", True),
        ("nats://o:65536", False),
        ("nats://o:4222 b", False),
        (r"nats://o\,", False),
        ("nats://", False),
        ("nats://:4222", False),
        ("nats://user:secret@o/x", False),
        ("o:4222", False),
    ],
)
def test_the_url_of_a_server_is_an_address_or_refused_without_its_password(
    helm: Path, url: str, right: bool
) -> None:
    settings = ("nats.enabled=false", f"nats.url={url}")
    if right:
        assert render(helm, *settings)
    else:
        told = refusal(helm, *settings)
        assert "nats.url" in told
        assert "secret" not in told


@pytest.mark.parametrize(
    "settings",
    [
        (*OUTSIDE, "credentials.secret=c"),
        ("nats.maxPayload=64MB",),
        ("nats.maxPayload=65536KB",),
        ("gateway.replicas=0", "fallback.replicas=0"),
        ("autoscaling.kind=keda", "autoscaling.most=4", "stages[0].replicas=4"),
        ("image.node=registry.example.com:5000/plant/swarm-node", "image.tag=v1_2"),
        ("resources.requests.cpu=0.5", "resources.limits.memory=1e9", "nats.storage=1.5Ti"),
        ("arguments={--threads=2,--lanes,moved}",),
        (*SECRETS, "nats.maxPayload=24MB", "nats.replicas=3", "nats.image=nats:2.15-alpine"),
        (*OUTSIDE, "language=true", "fallback.replicas=0", "gateway.replicas=1"),
        (
            *("nats.enabled=false", "nats.url=tls://outside:4222", "credentials.secret=mesh"),
            *("gateway.replicas=0", "cameras[0].name=hall", "cameras[0].source=http://v:1/n.jpg"),
            "cameras[0].arguments={--send,jpeg:85,--rate=10}",
        ),
    ],
    ids=str,
)
def test_values_that_fit_each_other_are_taken(helm: Path, settings: tuple[str, ...]) -> None:
    assert render(helm, *settings)


def test_the_whole_of_the_shipped_values_may_be_given_again(helm: Path) -> None:
    assert render(helm, values=CHART / "values.yaml") == render(helm)


@pytest.mark.parametrize("server", ["", "nats://192.0.2.1:4222", "one, tls://two:4222"])
def test_the_chart_takes_what_the_command_writes(helm: Path, tmp_path: Path, server: str) -> None:
    result = split_digits()
    write_dir(tmp_path / "digits", result.manifest, result.files)
    path = tmp_path / "values.yaml"
    done = said(
        "deploy", "k8s", str(tmp_path / "digits"), "--server", server, "--output", str(path)
    )
    assert done.code == 0, done.stderr
    found = pods(render(helm, "fallback.replicas=1", values=path))
    assert render(helm, "fallback.replicas=0", values=path)
    for role in ("shard-1", "shard-2", "shard-3", "fallback"):
        requested = found[role]["containers"][0]["resources"]["requests"]["memory"]
        assert int(requested.removesuffix("Mi")) << 20 >= IDLE_NODE


def test_each_node_has_a_stage_of_its_own_probes_limits_and_no_rights(helm: Path) -> None:
    found = pods(render(helm, *SECRETS))
    assert set(found) == {"shard-1", "shard-2", "shard-3", "fallback", "gateway", "nats"}
    for pod in found.values():
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)


def test_a_pod_sees_the_credentials_of_its_own_role_alone(helm: Path) -> None:
    for role, pod in pods(render(helm, *SECRETS)).items():
        if role == "nats":
            continue
        (secret,) = [v["secret"] for v in pod["volumes"] if v["name"] == "credentials"]
        assert {item["key"] for item in secret["items"]} == {f"{role}.creds", "ca.pem", "trusted"}


def test_a_cluster_never_opens_the_store_that_a_server_alone_has_made(helm: Path) -> None:
    folders = set()
    for servers in (1, 3):
        (container,) = pods(render(helm, f"nats.replicas={servers}"))["nats"]["containers"]
        (data,) = [mount for mount in container["volumeMounts"] if mount["name"] == "data"]
        folders.add(data.get("subPath", ""))
    assert folders == {"", "cluster"}


def test_a_stage_with_gpus_asks_for_them_and_the_others_do_not(helm: Path, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("stages: [{}, {gpus: 2}, {}]")
    found = pods(render(helm, values=values))
    gpus = {
        role: pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for role, pod in found.items()
    }
    assert gpus.pop("shard-2") == 2
    assert set(gpus.values()) == {None}


def test_a_pod_has_the_image_with_what_its_values_ask_for(helm: Path, tmp_path: Path) -> None:
    targets = set(re.findall(r"^FROM base AS (\w+)$", CONTAINERFILE.read_text(), re.M))

    def images(**values: Any) -> dict[str, str]:
        path = tmp_path / "values.yaml"
        path.write_text(json.dumps({"stages": [{}, {"gpus": 1}], **values}))
        found = pods(render(helm, values=path))
        taken = {role: pod["containers"][0]["image"] for role, pod in found.items()}
        named = {r: i.removeprefix("swarm-").split(":")[0] for r, i in taken.items() if r != "nats"}
        assert set(named.values()) <= targets
        return named

    camera = {"name": "hall", "source": "rtsp://192.0.2.2/1"}
    rest = {"fallback": "node", "gateway": "gateway", "shard-2": "gpu"}
    assert images() == {"shard-1": "node", **rest}
    assert images(cameras=[camera]) == {"shard-1": "node", "camera-hall": "cameras", **rest}
    camera["arguments"] = ["--send=jpeg:85"]
    sent = {"shard-1": "cameras", "fallback": "cameras", "camera-hall": "cameras"}
    assert images(cameras=[camera]) == rest | sent
    spoken = dict.fromkeys(("shard-1", "fallback", "gateway"), "language")
    assert images(language=True) == rest | spoken
    with pytest.raises(subprocess.CalledProcessError) as refused:
        images(cameras=[camera], stages=[{"gpus": 1}])
    assert "stages[0].gpus" in refused.value.stderr


def test_a_stage_that_is_scaled_names_no_number_that_would_undo_it(helm: Path) -> None:
    documents = render(helm, "autoscaling.kind=keda")
    deployments = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Deployment"}
    scaled = [d for d in documents if d["kind"] == "ScaledObject"]
    assert len(scaled) == 3
    for each in scaled:
        target = deployments[each["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        assert "max(swarm_wanted_replicas{" in json.dumps(each)
