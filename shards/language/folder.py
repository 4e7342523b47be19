"""A folder of a language model, as exporters leave it: the model, and the texts beside it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shards.errors import ModelError
from shards.foreign import foreign
from shards.json_fields import FILE_NAME
from shards.language.decoder import LanguageHints, Quantized, quantized_from_dict
from shards.language.texts import CHAT, TOKENIZER, ChatFile, Texts

MODEL, QUANTIZED = "model.onnx", "quantized.json"
TEXTS = (
    TOKENIZER,
    "tokenizer_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "genai_config.json",
)
_MOST_BYTES = 64 << 20  # of a text; tokenizer.json of 256k tokens has 33 MB


def read_folder(folder: Path) -> tuple[Path, LanguageHints]:
    """The model's file in a folder, and what the files beside it tell.

    Read are `TEXTS`, and `quantized.json` of `swarm model quantize`. The model is `model.onnx`, or
    the only file of ONNX. The tokenizer and the chat template are tried here. Raises ModelError
    for a folder without these, for texts that cannot be read, and for a template that is refused.
    """
    told = None if _has_onnx(folder) else foreign(folder)
    if told is not None:
        raise ModelError(told)
    genai, config = _json(folder, "genai_config.json"), _json(folder, "config.json")
    generation = _json(folder, "generation_config.json")
    settings = _json(folder, "tokenizer_config.json")
    search, genai = genai.get("search", {}), genai.get("model", {})
    config = config.get("text_config", config)
    model = _model(folder, genai.get("decoder", {}).get("filename", MODEL))
    tokenizer = _read(folder / TOKENIZER)
    if tokenizer is None:
        raise ModelError(
            f"{folder} has no {TOKENIZER}: save the tokenizer beside the model "
            "(transformers: AutoTokenizer.from_pretrained(…, use_fast=True).save_pretrained)"
        )
    special = {
        key: text
        for key in ("bos_token", "eos_token", "unk_token", "pad_token")
        if (text := _text(settings.get(key)))
    }
    sampling = {
        key: value
        for key in ("temperature", "top_p", "top_k", "repetition_penalty")
        if isinstance(value := generation.get(key, search.get(key)), (int, float))
    }
    chat = ChatFile(_template(folder, settings), special, sampling)
    files = {TOKENIZER: tokenizer, CHAT: chat.to_json()}
    texts = Texts.of(files)
    ends = [generation.get("eos_token_id"), genai.get("eos_token_id"), config.get("eos_token_id")]
    end_tokens = next((_ids(each) for each in ends if each is not None), ())
    end = texts.tokenizer.id_of(special["eos_token"]) if "eos_token" in special else None
    if end is not None and end not in end_tokens:
        end_tokens = (*end_tokens, end)
    if texts.template is not None:
        texts.template.render([{"role": "user", "content": "Hello."}])
    return model, LanguageHints(
        context=_size(genai.get("context_length"), config.get("max_position_embeddings")),
        heads=_size(
            genai.get("decoder", {}).get("num_attention_heads"), config.get("num_attention_heads")
        ),
        end_tokens=end_tokens,
        files=files,
        quantized=quantized_from_dict(_json(folder, QUANTIZED) or None),
        largest=texts.tokenizer.largest,
        window=_window(genai),
    )


def _window(genai: dict[str, Any]) -> int | None:
    """The window that the settings of onnxruntime-genai name, in tokens."""
    decoder = genai.get("decoder")
    found = decoder.get("sliding_window") if isinstance(decoder, dict) else None
    return _size(found.get("window_size")) if isinstance(found, dict) else None


def write_smaller(source: Path, target: Path, model: bytes, quantized: Quantized) -> None:
    """A new folder with a quantized model, the texts of the folder that it came from, and what the
    change cost. Raises ModelError."""
    files = {name: data for name in TEXTS if (data := _read(source / name)) is not None}
    files |= {MODEL: model, QUANTIZED: json.dumps(asdict(quantized), indent=1).encode()}
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.mkdir()
        for name, data in files.items():
            (partial / name).write_bytes(data)
        partial.rename(target)
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _has_onnx(folder: Path) -> bool:
    return next(folder.glob("*.onnx"), None) is not None or (folder / "onnx").is_dir()


def _model(folder: Path, name: str) -> Path:
    """The file of the model. Raises ModelError."""
    if (folder / name).is_file():
        return folder / name
    found = sorted(folder.glob("*.onnx")) or sorted(folder.glob("onnx/model.onnx"))
    if (folder / FILE_NAME).is_file():
        raise ModelError(
            f"{folder} is a model that is split already: `swarm model push {folder}` puts it into "
            "a mesh"
        )
    if not found:
        raise ModelError(f"{folder} holds no file of ONNX")
    if len(found) > 1:
        raise ModelError(
            f"{folder} has {len(found)} files of ONNX and no {name}: give the one to split as "
            f"{name}"
        )
    return found[0]


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    """The chat template: a file of its own, or one in the tokenizer's settings."""
    beside = _read(folder / "chat_template.jinja")
    if beside is not None:
        return beside.decode(errors="replace")
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _read(path: Path) -> bytes | None:
    """A text's bytes; None where there is none. Raises ModelError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ModelError(f"{path} has more than {_MOST_BYTES >> 20} MiB")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error


def _json(folder: Path, name: str) -> dict[str, Any]:
    """An object in a file; an empty one where there is no file. Raises ModelError."""
    data = _read(folder / name)
    if data is None:
        return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{folder / name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{folder / name} is no JSON object")
    return found


def _text(value: Any) -> str:
    """A special token: a text, or an object that has one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _ids(value: Any) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, int) and not isinstance(each, bool))


def _size(*values: Any) -> int | None:
    return next((each for each in values if isinstance(each, int) and each > 0), None)
