"""`swarm deploy k8s` writes values that the chart takes, with memory for the weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from support.commands import ROOT, said
from support.meshes import split_digits
from support.talker import talker

from nodes.upgrade.commands.deploy import values
from shards.manifest import write_dir

SCHEMA = json.loads((ROOT / "deploy" / "kubernetes" / "swarm" / "values.schema.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    result = split_digits()
    write_dir(tmp_path / "digits", result.manifest, result.files)
    return tmp_path / "digits"


def test_the_values_fit_the_charts_schema_and_have_one_stage_a_shard(folder: Path) -> None:
    done = said(
        "deploy", "k8s", str(folder), "--mesh", "plant", "--server", "nats://192.0.2.1:4222"
    )
    assert done.code == 0, done.stderr
    values = yaml.safe_load(done.stdout)
    jsonschema.validate(values, SCHEMA)
    assert (values["mesh"], values["model"], len(values["stages"])) == ("plant", "digits", 3)
    assert values["nats"] == {"enabled": False, "url": "nats://192.0.2.1:4222"}


def test_a_pod_has_memory_for_the_weights_of_its_stages(folder: Path) -> None:
    done = said("deploy", "k8s", str(folder), "--json")
    values = json.loads(done.stdout)
    result = split_digits()
    for shard, stage in zip(result.manifest.shards, values["stages"], strict=True):
        limit = int(stage["resources"]["limits"]["memory"].removesuffix("Mi")) << 20
        assert limit >= 8 * shard.bytes


def test_nodes_of_a_language_model_have_what_it_needs() -> None:
    document = values(talker().manifest, "plant")
    jsonschema.validate(document, SCHEMA)
    assert document["language"] is True
    assert "language" not in values(split_digits().manifest, "plant")


@pytest.mark.parametrize(
    ("bytes_of_a_cut", "payload"),
    [(1 << 20, None), (7 << 20, None), (13 << 20, "27MB"), (60 << 20, "64MB")],
)
def test_a_server_of_the_charts_own_takes_the_largest_cut_twice(
    bytes_of_a_cut: int, payload: str | None
) -> None:
    manifest = split_digits().manifest
    sent = manifest.shards[0].sends[0]
    large = replace(sent, shape=(bytes_of_a_cut // 4,), datatype="FP32", example=None)
    shards = (replace(manifest.shards[0], sends=(large,)), *manifest.shards[1:])
    document = values(replace(manifest, shards=shards), "plant")
    jsonschema.validate(document, SCHEMA)
    assert document.get("nats", {}).get("maxPayload") == payload
