"""The head of a model: its last fully connected layer, which nodes train on frozen features.

features [batch, width] ─► Gemm or MatMul (+ Add) ─► logits [batch, classes] ─► Softmax, if any
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shards.errors import ModelError
from shards.specs import TensorSpec
from shards.weights.onnx_file import Layer, OnnxFile

# Layers that may follow a head: they only rename, reshape or squash its logits.
_BEHIND_A_HEAD = frozenset(
    {"Softmax", "LogSoftmax", "Sigmoid", "Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"}
    | {"Cast", "ArgMax"}
)


@dataclass(frozen=True, slots=True)
class ModelHead:
    """Where a model's head is.

    `weight` and `bias` name the stored tensors; `bias` is "" for a head without one. `features`
    and `logits` name the tensors that the head reads and makes. The stored weight has the shape
    [width, classes], or [classes, width] if it is `transposed`; `bias_shape` is the stored bias's.
    `datatype` is that of both.
    """

    weight: str
    bias: str
    features: str
    logits: str
    width: int
    classes: int
    transposed: bool
    datatype: str
    bias_shape: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The stored tensors that training the head changes."""
        return (self.weight, self.bias) if self.bias else (self.weight,)

    def tensors(self, weight: np.ndarray, bias: np.ndarray) -> dict[str, np.ndarray]:
        """FP32 `weight` [width, classes] and `bias` [classes] as the model stores them, by name.

        A head that has no bias stores none: `bias` has to be zero then. Raises ModelError.
        """
        if weight.shape != (self.width, self.classes) or bias.shape != (self.classes,):
            raise ModelError(
                f"the head is [{self.width}, {self.classes}] with [{self.classes}] biases, not "
                f"{list(weight.shape)} with {list(bias.shape)}"
            )
        spec = TensorSpec(self.weight, self.datatype, ())
        stored = weight.T if self.transposed else weight
        made = {self.weight: np.array(stored, spec.dtype, order="C")}
        if self.bias:
            made[self.bias] = np.array(bias, spec.dtype).reshape(self.bias_shape)
        elif bias.any():
            raise ModelError("the model's last layer has no bias: train without one")
        return made


def find_head(model: bytes | memoryview) -> ModelHead:
    """The head of a model. Raises ModelError with the reason where it has none to train."""
    return _find(OnnxFile(model))


def split_off_head(model: bytes | memoryview) -> tuple[bytes, ModelHead, np.ndarray, np.ndarray]:
    """The frozen part of a model, its head, and the head's present weights.

    The frozen part is a serialized model from the same inputs to the features, FP32 or FP16
    [batch, width], and b"" where the head reads an input of the model itself. The weights are FP32
    [width, classes], the biases FP32 [classes]. Raises ModelError with the reason where the model
    has no head to train.
    """
    file = OnnxFile(model)
    head = _find(file)
    frozen = b""
    if head.features not in file.inputs:
        needed = _ancestors(file, head.features)
        frozen = file.until(head.features, head.datatype, lambda layer: id(layer) in needed)
    stored = file.weight(head.weight)
    weight = np.array(stored.T if head.transposed else stored, np.float32, order="C")
    bias = np.zeros(head.classes, np.float32)
    if head.bias:
        bias[:] = file.weight(head.bias).reshape(-1)
    return frozen, head, weight, bias


def _find(file: OnnxFile) -> ModelHead:
    index, layer = next(
        (
            (index, layer)
            for index, layer in reversed(list(enumerate(file.layers)))
            if layer.operator in ("Gemm", "MatMul") and not layer.domain
        ),
        (-1, None),
    )
    if layer is None:
        raise ModelError("no head to train: the model has no fully connected layer")
    behind = file.layers[index + 1 :]
    place = f"no head to train: the last {layer.operator}, which makes {layer.outputs[0]!r},"
    head = (
        _of_gemm(file, layer, place) if layer.operator == "Gemm" else _of_matmul(file, layer, place)
    )
    if layer.operator == "MatMul":
        head, behind = _with_added_bias(file, head, behind)
    _check_behind(head, behind, place)
    for name in head.names:
        readers = [other for other in file.layers if name in other.inputs]
        if len(readers) > 1:
            raise ModelError(f"{place} shares {name!r} with another layer")
    return head


def _of_gemm(file: OnnxFile, layer: Layer, place: str) -> ModelHead:
    numbers = layer.numbers
    if numbers.get("transA", 0) or numbers.get("alpha", 1.0) != 1.0:
        raise ModelError(f"{place} transposes or scales its features")
    transposed = bool(numbers.get("transB", 0))
    spec = _weight_spec(file, layer, place)
    width, classes = reversed(spec.shape) if transposed else spec.shape
    bias = layer.inputs[2] if len(layer.inputs) > 2 else ""
    shape: tuple[int, ...] = ()
    if bias:
        if numbers.get("beta", 1.0) != 1.0:
            raise ModelError(f"{place} scales its bias")
        shape = _bias_shape(file, bias, spec, classes)
        if not shape:
            raise ModelError(f"{place} has a bias {bias!r} that is no stored row of {classes}")
    return ModelHead(
        layer.inputs[1],
        bias,
        layer.inputs[0],
        layer.outputs[0],
        width,
        classes,
        transposed,
        spec.datatype,
        shape,
    )


def _of_matmul(file: OnnxFile, layer: Layer, place: str) -> ModelHead:
    spec = _weight_spec(file, layer, place)
    width, classes = spec.shape
    names = layer.inputs[1], "", layer.inputs[0], layer.outputs[0]
    return ModelHead(*names, width, classes, False, spec.datatype, ())


def _with_added_bias(
    file: OnnxFile, head: ModelHead, behind: tuple[Layer, ...]
) -> tuple[ModelHead, tuple[Layer, ...]]:
    """The head with the bias that an Add behind its MatMul adds, and the layers behind that."""
    for layer in behind:
        if layer.operator == "Add" and head.logits in layer.inputs:
            bias = next(name for name in layer.inputs if name != head.logits)
            weight = file.specs[head.weight]
            shape = _bias_shape(file, bias, weight, head.classes)
            if shape:
                places = head.features, layer.outputs[0], head.width, head.classes
                found = ModelHead(head.weight, bias, *places, False, head.datatype, shape)
                return found, tuple(other for other in behind if other is not layer)
    return head, behind


def _weight_spec(file: OnnxFile, layer: Layer, place: str) -> TensorSpec:
    spec = file.specs.get(layer.inputs[1])
    if spec is None:
        raise ModelError(f"{place} has weights that are computed, not stored (quantized?)")
    if len(spec.shape) != 2 or spec.datatype == "FP64":
        raise ModelError(f"{place} has weights {spec}, not FP32 or FP16 [width, classes]")
    if layer.inputs[0] in file.specs:
        raise ModelError(f"{place} reads no features")
    return spec


def _bias_shape(file: OnnxFile, name: str, weight: TensorSpec, classes: int) -> tuple[int, ...]:
    """The stored shape of a bias of one row; () for another tensor."""
    spec = file.specs.get(name)
    if spec is None or spec.datatype != weight.datatype:
        return ()
    return spec.shape if spec.shape in ((classes,), (1, classes)) else ()


def _check_behind(head: ModelHead, behind: tuple[Layer, ...], place: str) -> None:
    """Raise ModelError when layers behind the head do more than to reshape or squash logits."""
    made = {head.logits}
    for layer in behind:
        if not made.isdisjoint(layer.inputs):
            if layer.operator not in _BEHIND_A_HEAD or layer.domain:
                raise ModelError(f"{place} is followed by {layer.operator}: it is no last layer")
            made.update(layer.outputs)


def _ancestors(file: OnnxFile, tensor: str) -> set[int]:
    """Identities of the layers that a tensor depends on.

    A layer with graphs of its own may read any tensor, so all layers before it count then.
    """
    wanted, needed, everything = {tensor}, set(), False
    for layer in reversed(file.layers):
        if everything or not wanted.isdisjoint(layer.outputs):
            needed.add(id(layer))
            wanted.update(layer.inputs)
            everything = everything or not layer.is_plain
    return needed
