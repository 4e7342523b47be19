"""What is no model of ONNX is told in one line, with what makes a model of ONNX of it."""

import io
import json
import zipfile
from pathlib import Path

import pytest
from support.commands import said

from shards.errors import ArtifactError, ModelError
from shards.foreign import foreign
from shards.manifest import read_dir
from shards.split.split import split
from shards.zoo import digits_model


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name in names:
            file.writestr(name, b"x")
    return made.getvalue()


WEIGHTS = (2).to_bytes(8, "little") + b"{}"
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(40)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("m.pt", archive("m/data.pkl"), "a file of PyTorch.*torch.onnx.export"),
        ("m.pth", b"\x80\x02ctorch", "a file of PyTorch"),
        ("pytorch_model.bin", b"\x80\x02ctorch", "a file of PyTorch"),
        ("m.tflite", b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite.*tf2onnx"),
        ("m.bin", b"\x1c\x00\x00\x00TFL3" + bytes(40), "TensorFlow Lite"),
        ("m.engine", b"ftrt" + bytes(60), "engine of TensorRT.*--device tensorrt"),
        ("m.plan", bytes(60), "engine of TensorRT"),
        ("m.h5", HDF5, "Keras.*format='onnx'"),
        ("m.keras", archive("config.json"), "Keras"),
        ("m.pb", b"\x0a\x05", "TensorFlow.*tf2onnx"),
        ("m.mlmodel", b"\x08\x01", "Core ML"),
        ("m.onnx.zip", archive("m.onnx"), "an archive: unpack it"),
        ("m.onnx", archive("m.onnx"), "an archive: unpack it"),
        ("m.onnx.gz", b"\x1f\x8b" + bytes(40), "an archive: unpack it"),
        ("m.safetensors", WEIGHTS, "weights without a graph.*config.json"),
        ("m.gguf", b"GGUF" + bytes(60), "llama.cpp.*Hugging Face"),
        ("m.ort", b"\x18\x00\x00\x00ORTM" + bytes(40), "ONNX Runtime has made for itself"),
        ("m.onnx.data", bytes(60), "weights of an ONNX model"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        ("m.xml", b"<?xml version='1.0'?><net/>", "OpenVINO"),
    ],
)
def test_a_file_of_another_kind_is_named_in_one_line(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(ModelError, match=says) as raised:
        split(file, name="m", stages=2)
    assert str(raised.value).startswith(str(file))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
            "uvx .*onnxruntime_genai.models.builder -i {0} -o {0}-onnx",
        ),
        (
            {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"},
            "optimum-cli export onnx -m {0} --task text-generation-with-past {0}-onnx",
        ),
        (
            {"architectures": ["BertForSequenceClassification"], "model_type": "bert"},
            "optimum-cli export onnx -m {0} {0}-onnx",
        ),
        ([], "optimum-cli export onnx -m {0} {0}-onnx"),
    ],
)
def test_a_folder_of_hugging_face_is_told_its_exporters_command(
    tmp_path: Path, config: object, says: str
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    (folder / "tokenizer.json").write_text("{}")
    wanted = says.format(folder)
    with pytest.raises(ArtifactError, match=wanted) as raised:
        read_dir(folder)
    assert "\n" not in str(raised.value)
    with pytest.raises(ModelError, match=wanted):
        split(folder / "model.safetensors", name="m", stages=2)
    folders = pytest.importorskip("shards.language.folder")
    with pytest.raises(ModelError, match=wanted):
        folders.read_folder(folder)


def test_a_command_quotes_a_folders_name(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    assert f"-m '{folder}' '{folder}-onnx'" in str(foreign(folder))


def test_a_folder_of_another_kind_is_named_in_one_line(tmp_path: Path) -> None:
    for name, inside, says in (
        ("m.mlpackage", "Manifest.json", "Core ML"),
        ("saved", "saved_model.pb", "TensorFlow"),
        ("llama", "q4.gguf", "llama.cpp"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / inside).write_bytes(b"x")
        with pytest.raises(ArtifactError, match=says):
            read_dir(folder)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["split", "SPLIT", "-o", "OUT"], "split already: `swarm model push"),
        (["split", "EMPTY", "-o", "OUT"], "holds no file of ONNX"),
        (["quantize", "FACE", "--weights-only", "-o", "OUT"], "optimum-cli export onnx"),
        (["quantize", "EMPTY", "--weights-only", "-o", "OUT"], "is a folder: give the .onnx file"),
        (["inspect", "EMPTY"], "give a folder that `swarm model split` has written"),
        (["inspect", "MISSING"], "no such folder"),
    ],
)
def test_a_folder_that_a_command_cannot_take_is_named_for_what_it_is(
    tmp_path: Path, command: list[str], says: str
) -> None:
    if command[0] != "inspect":  # a folder that is a language model is read
        pytest.importorskip({"quantize": "nodes.quantize", "split": "nodes.language"}[command[0]])
    for name in ("SPLIT", "EMPTY", "FACE"):
        (tmp_path / name).mkdir()
    (tmp_path / "SPLIT" / "manifest.json").write_text("{}")
    (tmp_path / "FACE" / "config.json").write_text("{}")
    (tmp_path / "FACE" / "model.safetensors").write_bytes(WEIGHTS)
    words = [str(tmp_path / word) if word.isupper() else word for word in command]
    done = said("model", *words)
    assert done.code
    assert says in done.stderr
    assert not (tmp_path / "OUT").exists()


def test_a_model_of_onnx_is_nothing_else_whatever_its_name(tmp_path: Path) -> None:
    for name in ("m.onnx", "m", "m.pb.onnx"):
        (tmp_path / name).write_bytes(digits_model())
        assert foreign(tmp_path / name) is None
    assert foreign(tmp_path / "nothing.onnx") is None
