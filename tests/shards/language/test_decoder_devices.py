"""A language model's stage on a device: its keys and values there, checked against the CPU, or
refused by name. No device is at hand, so the CPU plays one."""

import numpy as np
import pytest
from decoder_chains import greedy, run, stages_of, tiny

from shards.errors import DeviceError, ModelError
from shards.language.kv_growing import DeviceKv, GrowingKv
from shards.language.kv_stage import KvStage
from shards.language.load import check_alike, load_decoder_stage, stage_form
from shards.runtimes.device import DeviceChoice

FORMS = ["genai", "optimum", "attention"]
PROMPT = [7, 3, 200, 41, 9]


def on_device(form: str, slots: int = 3) -> list[KvStage]:
    """All stages, with keys and values as ONNX Runtime's values in a device's memory."""
    result = tiny(form)
    return [
        DeviceKv(
            result.files[shard.file],
            stage_form(result.manifest, shard.stage),
            device="played",
            memory="cpu",
            slots=slots,
            context=64,
        )
        for shard in result.manifest.shards
    ]


@pytest.mark.parametrize("form", FORMS)
def test_sessions_on_a_device_are_repeated_and_copied_bit_by_bit(form: str) -> None:
    usual, stages = stages_of(tiny(form)), on_device(form)
    tokens, logits = greedy(usual, PROMPT, 8)
    made, found = greedy(stages, PROMPT, 8)
    assert made == tokens
    assert np.array_equal(found, logits)
    run(stages, [1, 2, 3], 0, len(PROMPT) + 2)  # tokens that are rejected afterwards
    for step in range(3, 8):
        again = run(stages, tokens[step - 1 : step], 0, len(PROMPT) + step - 1)
        assert np.array_equal(again, logits[step]), step
    held = len(PROMPT) + 3
    for stage in stages:
        stage.copy(0, 1, held)
    assert np.array_equal(run(stages, tokens[3:4], 1, held), logits[4])
    for stage in stages:
        stage.close()
        stage.close()


def test_a_device_that_computes_other_values_is_found() -> None:
    right, wrong = stages_of(tiny("optimum")), stages_of(tiny("optimum", seed=1))
    for mine, same, other in zip(on_device("optimum"), right, wrong, strict=True):
        check_alike(mine, same, 0.0)
        with pytest.raises(ModelError, match="played computes other values than the CPU"):
            check_alike(mine, other, 1e-3)


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("tensorrt", "keep sessions, which TensorRT's own runtime cannot.*tensorrt-ort.*cuda"),
        ("cuda", "'cuda' is not there.*onnxruntime-gpu"),
        ("cann", "'cann' is not there"),
    ],
)
def test_a_device_that_cannot_keep_sessions_is_refused_by_name(device: str, says: str) -> None:
    result = tiny()
    fetch = result.files.__getitem__
    with pytest.raises(DeviceError, match=says):
        load_decoder_stage(result.manifest, 1, fetch, slots=1, placement=DeviceChoice(device))


def test_a_stage_that_names_no_device_is_on_the_cpu_where_sessions_share_runs() -> None:
    result = tiny()
    fetch = result.files.__getitem__
    stage = load_decoder_stage(result.manifest, 1, fetch, slots=1, placement=DeviceChoice("auto"))
    assert stage.device == "cpu"
    assert not isinstance(stage, GrowingKv)
