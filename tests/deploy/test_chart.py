"""The Helm chart, rendered by a real helm, fits Kubernetes, and refuses what it cannot mean.

`test_chart_plays.py` starts the pods. No cluster runs here.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from charts import CHART, render

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
        ("model=a b", "model"),
        ("nats.enabled=false", "nats.url"),
        ("nats.url=http://x", "url"),
        ("nats.replicas=2", "replicas"),
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


def test_a_stage_that_is_scaled_names_no_number_that_would_undo_it(helm: Path) -> None:
    documents = render(helm, "autoscaling.kind=keda")
    deployments = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Deployment"}
    scaled = [d for d in documents if d["kind"] == "ScaledObject"]
    assert len(scaled) == 3
    for each in scaled:
        target = deployments[each["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        assert "max(swarm_wanted_replicas{" in json.dumps(each)
