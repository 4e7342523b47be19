"""One command starts models, a lighter one among them, and a composition of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest
from support.commands import commands
from support.compositions import RICH
from support.meshes import close, digits

from shards.zoo import digits_lite_model, digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]


def test_models_and_their_composition_are_started_and_asked_under_rights(tmp_path: Path) -> None:
    images, logits = digits()
    np.savez(tmp_path / "x.npz", image=images[:1])
    models = {"small": digits_lite_model(), "large": digits_model()}
    words = ["--compose", str(tmp_path / "rich.toml"), "--lighter-model", "small"]
    (tmp_path / "rich.toml").write_text(RICH.replace("4.0", "1e9"), encoding="utf-8")
    for name, model in models.items():
        (tmp_path / f"{name}.onnx").write_bytes(model)
        words = ["--model", str(tmp_path / f"{name}.onnx"), *words]  # the lighter one comes last
    with commands(tmp_path / "commands") as run:
        own = ("--secure", "--stages", "1", "--no-fallback", "--json")
        up = run.start("nodes.cli.main", "up", *words, *own)
        ready = up.ready_line()
        assert (ready["model"], sorted(ready["models"])) == ("rich", ["large@1", "small@1"])
        assert [node["role"] for node in ready["nodes"]] == ["shard-1"] * 3
        files = ("--credentials", ready["credentials"], "--tls-ca", ready["tls_ca"])
        at = ("--input", str(tmp_path / "x.npz"), "--json", "--nats", ready["nats"], *files)
        answer = json.loads(run.swarm("infer", "rich", *at).stdout)
        outputs = {each["name"]: each["data"] for each in answer["outputs"]}
        assert close(np.array([outputs["logits"]], np.float32).reshape(1, -1), logits[:1])
        assert json.loads(run.swarm("infer", "large", *at).stdout)["outputs"]
        up.signal(signal.SIGINT)
        assert up.wait() == 0
