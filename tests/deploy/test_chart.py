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
    "a server outside": ("nats.enabled=false", "nats.url=nats://192.0.2.1:4222"),
}


def validate(document: dict[str, Any], version: str) -> None:
    if document["kind"] not in OWN_KINDS:
        kubernetes_validate.validate(document, version, strict=True)


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
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(helm, setting)
    assert reason in refused.value.stderr


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
