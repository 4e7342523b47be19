"""Models with fewer bits, measured."""

from __future__ import annotations

from nodes.feature import Commands, Feature

COMMANDS: Commands = {"Make": {"model quantize": "nodes.quantize.commands.quantize:quantize"}}
FEATURE = Feature("quantize", extras={"onnx_ir": "quantize"}, commands=COMMANDS)
