"""What the toy language model reads: documents of Python's standard library, and its tokenizer.

A docstring becomes a question, the name of what it describes, and an answer. Topics of `help()`,
comments and the licence are texts without a question.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sysconfig
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
VOCABULARY = 2048
HELD_OUT = 20  # one document in so many
SEED = 7
# Tests and their data repeat each other, and the comments of encodings are tables.
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "lib2to3", "__pycache__", "encodings"}
_FEWEST_CHARACTERS = 40
_LETTERS = 0.72  # share of letters and spaces: below it, a text is a table or code


def documents(library: Path | None = None) -> list[str]:
    """All documents of a standard library, each once, in a seeded order."""
    library = library or Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _LEFT_OUT.isdisjoint(parts):
            found.update(dict.fromkeys(_texts_of(path, parts)))
    licence = library / "LICENSE.txt"
    if licence.is_file():
        found.update(dict.fromkeys(_plain(licence.read_text().split("\n\n\n"))))
    texts = list(found)
    order = np.random.default_rng(SEED).permutation(len(texts))
    return [texts[at] for at in order]


def parted(texts: list[str]) -> tuple[list[str], list[str]]:
    """Documents to learn from, and those that are held out."""
    held = texts[::HELD_OUT]
    return [text for at, text in enumerate(texts) if at % HELD_OUT], held


def _texts_of(path: Path, parts: tuple[str, ...]) -> Iterator[str]:
    try:
        source = path.read_text("utf-8")
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):  # samples of other encodings and of errors
        return
    if parts == ("pydoc_data", "topics"):
        yield from _topics(tree)
        return
    module = ".".join(part for part in parts if part != "__init__")
    yield from _docstrings(tree, module)
    yield from _plain(_comments(source))


def _topics(tree: ast.Module) -> Iterator[str]:
    """The texts of `help("for")` and its like, a paragraph or some to a document."""
    assert isinstance(tree.body[-1], ast.Assign)
    topics: dict[str, str] = ast.literal_eval(tree.body[-1].value)
    for name, text in topics.items():
        paragraphs = [_tidy(each) for each in text.split("\n\n")]
        paragraphs = [each for each in paragraphs if _is_prose(each)]
        for start in range(0, len(paragraphs), 4):
            piece = "\n".join(paragraphs[start : start + 4])
            yield f"{USER}{name}{ASSISTANT}{piece}" if start == 0 else piece


def _docstrings(tree: ast.AST, name: str) -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    if isinstance(tree, kinds) and (text := ast.get_docstring(tree)):
        text = _tidy(text)
        if _is_prose(text):
            yield f"{USER}{name}{ASSISTANT}{text}"
    for child in ast.iter_child_nodes(tree):
        own = f"{name}.{child.name}" if isinstance(child, kinds[1:]) else name
        yield from _docstrings(child, own)


def _comments(source: str) -> Iterator[str]:
    """Comments of several lines, as one text each."""
    lines: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1:
            yield "\n".join(lines)
            lines = []
        last = token.start[0]
        lines.append(token.string.lstrip("#! ").rstrip("# "))
    yield "\n".join(lines)


def _plain(texts: Iterator[str] | list[str]) -> Iterator[str]:
    for text in map(_tidy, texts):
        if _is_prose(text) and text.count(" ") > 8:
            yield text


def _tidy(text: str) -> str:
    """Without indentation, and with one space, or one end of a line, where there were several."""
    text = re.sub(r"[ \t]+", " ", inspect.cleandoc(text))
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def _is_prose(text: str) -> bool:
    if len(text) < _FEWEST_CHARACTERS or not text.isascii():
        return False
    letters = sum(char.isalpha() or char == " " for char in text)
    return letters >= _LETTERS * len(text)


def tokenizer_of(texts: list[str]) -> Any:
    """A byte-level BPE of `VOCABULARY` tokens, learnt from these texts (`tokenizers`)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # A text begins where another has ended, as in training.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} $A", special_tokens=[(END, tokenizer.token_to_id(END))]
    )
    return tokenizer
