"""Which tensors of a composition need not come to its node: those that only models read."""

from __future__ import annotations

import pytest

from nodes.compose.referring import referable
from shards.compose.composition import from_toml

BEGIN = """
[inputs]
x = { datatype = "FP32", shape = [1, 2] }
[[part]]
name = "a"
model = "a"
inputs = { x = "x" }
[[part]]
name = "b"
model = "b"
inputs = { x = "a.y" }
"""
END = """
[outputs]
out = "b.z"
"""


@pytest.mark.parametrize(
    ("more", "outputs", "found"),
    [
        ("", "", {"a": {"y": ["b"]}}),
        ('name = "c"\nmodel = "c"\ninputs = { x = "a.y" }', "", {"a": {"y": ["b", "c"]}}),
        ('name = "c"\nmodel = "c"\ninputs = { x = "a.other" }', "", None),
        ("", 'more = "a.y"', {}),
        ('name = "c"\nsoftmax = { of = "a.y" }', 'more = "c.scores"', {}),
        ('name = "c"\nmap = "c"\ninputs = { x = "a.y" }\nmost = 2', 'more = "c.y"', {}),
        (
            'name = "c"\nmodel = "c"\ninputs = { x = "a.y" }\ncache = { bytes = "1MB", age_s = 1 }',
            'more = "c.y"',
            {},
        ),
        ('name = "c"\nfirst = ["a", "b"]', 'more = "c.y"', {}),
        (
            'name = "c"\nchoose = { by = "a.y", measure = "margin", below = 1.0 }\nthen = "b"\n'
            'otherwise = "b"',
            "",
            {},
        ),
    ],
)
def test_only_what_models_alone_read_as_it_is(
    more: str, outputs: str, found: dict[str, dict[str, list[str]]] | None
) -> None:
    text = BEGIN + (f"[[part]]\n{more}" if more else "") + END + outputs
    expected = {"a": {"y": ["b"], "other": ["c"]}} if found is None else found
    told = {part: of for part, of in referable(from_toml(text)).items() if of}
    assert told == expected
