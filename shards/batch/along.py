"""Rules for operators that work along axes: reductions, normalisations, pictures, sequences."""

from __future__ import annotations

from dataclasses import replace

from shards.batch.sizes import ONE, Size
from shards.batch.step import OperatorStep, counted, no_counts, only_values, rows_apart
from shards.batch.values import Rows, RowsMayMix, Value, made, without_rows


def reduced(step: OperatorStep) -> list[Value]:
    """ReduceMax and its kind. Without axes they run over all of them."""
    value = step.value(0)
    no_counts([value])
    axes = step.numbers(1, "axes", "axes")
    if not axes:
        if step.attribute("noop_with_empty_axes", 0):
            return [value]
        axes = tuple(range(value.rank))
    gone = {counted(axis, value.rank) for axis in axes}
    rows = rows_apart(value, sorted(gone), "reduces")
    return [_reduced(value, gone, rows, keep=bool(step.attribute("keepdims", 1)))]


def product_of_sizes(step: OperatorStep) -> list[Value]:
    """ReduceProd and ReduceSum, also of a tensor's sizes."""
    value = step.value(0)
    unclear = step.attribute("noop_with_empty_axes", 0)
    if value.elements is None or value.rank != 1 or unclear:
        return reduced(step)  # of anything else
    total = value.elements[0] if value.elements else ONE
    for each in value.elements[1:]:
        total = total * each if step.op == "ReduceProd" else total + each
    return [Value((ONE,) if step.attribute("keepdims", 1) else (), None, (total,))]


def largest_at(step: OperatorStep) -> list[Value]:
    """ArgMax and ArgMin."""
    value = step.value(0)
    no_counts([value])
    axis = step.axis(value.rank, 0)
    rows = rows_apart(value, [axis], "looks along")
    found = _reduced(value, {axis}, rows, keep=bool(step.attribute("keepdims", 1)))
    return [replace(found, below=value.known[axis])]


def along_one(step: OperatorStep) -> list[Value]:
    """An operator that keeps all sizes and runs along one axis, such as CumSum."""
    value = step.value(0)
    no_counts([value])
    if step.op == "CumSum":
        found = step.numbers(1, "axis") or (0,)
        axis = counted(found[0], value.rank)
    else:
        axis = step.axis(value.rank, -1)
    return [made(value.known, rows_apart(value, [axis], "runs along"))]


def softmax(step: OperatorStep) -> list[Value]:
    """Softmax and its kind: before version 13 over all axes from `axis` on."""
    value = step.value(0)
    no_counts([value])
    axis = step.axis(value.rank, -1 if step.opset >= 13 else 1)
    axes = [axis] if step.opset >= 13 else range(axis, value.rank)
    return [made(value.known, rows_apart(value, list(axes), "normalises"))]


def layer_norm(step: OperatorStep) -> list[Value]:
    """LayerNormalization and RMSNormalization: over all axes from `axis` on."""
    value = step.value(0)
    no_counts([value])
    axis = step.axis(value.rank, -1)
    rows = rows_apart(value, list(range(axis, value.rank)), "normalises")
    for index in range(1, len(step.inputs)):
        if step.has(index):
            step.fixed(index, "scale or bias")
    less = [*value.known[:axis], *[ONE] * (value.rank - axis)]
    return [made(value.known, rows), *[made(less, rows)] * (len(step.node.output) - 1)]


def skip_norm(step: OperatorStep) -> list[Value]:
    """A sum of two tensors, normalised along the last axis, as ONNX Runtime fuses them."""
    value, other = step.value(0), step.value(1)
    no_counts([value, other])
    rows = rows_apart(value, [value.rank - 1], "normalises")
    if other.known != value.known or other.rows != value.rows or len(step.node.output) > 1:
        raise RowsMayMix("its inputs have different shapes")
    for index in range(2, len(step.inputs)):
        if step.has(index):
            step.fixed(index, "scale or bias")
    return [made(value.known, rows)]


def whole_norm(step: OperatorStep) -> list[Value]:
    """MeanVarianceNormalization: over axes 0, 2 and 3 where nothing else is said."""
    value = step.value(0)
    no_counts([value])
    axes = [counted(axis, value.rank) for axis in step.attribute("axes", [0, 2, 3])]
    return [made(value.known, rows_apart(value, axes, "normalises"))]


def top(step: OperatorStep) -> list[Value]:
    """TopK: as many of an axis as a stored number says."""
    value = step.value(0)
    no_counts([value])
    axis = step.axis(value.rank, -1)
    rows = rows_apart(value, [axis], "sorts")
    stored = step.attribute("k")
    count = Size.of(int(stored)) if stored else step.sizes(1, "k")[0]
    dims = (*value.known[:axis], count, *value.known[axis + 1 :])
    return [made(dims, rows)] * 2


def pictures(step: OperatorStep) -> list[Value]:
    """Conv, pooling and their kind: axis 0 counts pictures, and each is worked on alone."""
    value = step.value(0)
    rows = _first(value)
    for index in range(1, len(step.inputs)):
        if step.has(index):
            step.fixed(index, "weights")
    if step.op == "BatchNormalization" and (
        step.attribute("training_mode", 0) or len([n for n in step.node.output if n]) > 1
    ):
        raise RowsMayMix("it normalises over the whole batch, as in training")
    found = _picture(step, value, rows)
    if len(step.node.output) == 1:
        return [found]
    if rows is None:
        return [found] * len(step.node.output)
    # Indices of a MaxPool count through all pictures.
    return [found, Value(None, mixed=f"{step.op} counts its indices through the whole batch")]


def sampled(step: OperatorStep) -> list[Value]:
    """GridSample: a picture and a grid for each row."""
    value, grid = step.value(0), step.value(1)
    rows = _first(value)
    if _first(grid) != rows:
        raise RowsMayMix("its pictures and grids are not equally many")
    return [made([*value.known[:2], *grid.known[1:-1]], rows)]


def resized(step: OperatorStep) -> list[Value]:
    """Resize and Upsample: along the rows the scale is 1."""
    value = step.value(0)
    no_counts([value])
    rows = only_values(value)
    if step.attribute("coordinate_transformation_mode", b"") in (
        b"tf_crop_and_resize",
        b"tf_half_pixel_for_nn",
    ):
        raise RowsMayMix("its coordinates are moved, perhaps across rows")
    axes = [counted(axis, value.rank) for axis in step.attribute("axes") or range(value.rank)]
    dims = [step.size(axis) if axis in axes else size for axis, size in enumerate(value.known)]
    at_scales = 2 if step.opset >= 11 and step.op == "Resize" else 1
    if step.has(3):
        if step.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch":
            raise RowsMayMix("its scale is found from all axes")
        for axis, size in zip(axes, step.sizes(3, "sizes"), strict=True):
            dims[axis] = size
        kept = rows is None or rows.axis not in axes or dims[rows.axis] == rows.size
    else:
        found = step.attribute("scales")
        scales = step.floats(at_scales) if found is None else found
        if scales is None or len(scales) != len(axes):
            raise RowsMayMix("its scales are unknown")
        by_axis = dict(zip(axes, (float(scale) for scale in scales), strict=True))
        kept = rows is None or by_axis.get(rows.axis, 1.0) == 1.0
        for axis, scale in by_axis.items():
            number = value.known[axis].number
            if scale == 1.0:
                dims[axis] = value.known[axis]
            elif number is not None and scale.is_integer():
                dims[axis] = Size.of(number * int(scale))
    if not kept:
        raise RowsMayMix("it scales the axis along which the rows of a batch lie")
    return [made(dims, rows)]


def sequences(step: OperatorStep) -> list[Value]:
    """RNN, GRU and LSTM: sequences along axis 1, their lengths and first states beside them."""
    if step.attribute("layout", 0):
        raise RowsMayMix("it has another layout")
    value = step.value(0)
    rows = only_values(value)
    if rows is not None and rows.axis != 1:
        raise RowsMayMix("it goes through the rows of a batch as through time")
    states = {4: 0, 5: 1, 6: 1}  # the axis of the rows by input: lengths, first states
    for index in range(1, len(step.inputs)):
        if not step.has(index):
            continue
        if index not in states or (rows is None and step.value(index).same):
            step.fixed(index, "weights or first states")
        elif rows is None or step.value(index).rows != rows.at(states[index]):
            raise RowsMayMix("its first states or lengths have no rows like its input")
    ways = Size.of(2 if step.attribute("direction", b"forward") == b"bidirectional" else 1)
    width = Size.of(int(step.attribute("hidden_size", 0)))
    time, batch, _ = value.known
    last = made([ways, batch, width], rows)
    all_steps = made([time, ways, batch, width], None if rows is None else rows.at(2))
    return [all_steps, last, last]


def table_rows(step: OperatorStep) -> list[Value]:
    """Operators of ai.onnx.ml: each row of a table by itself."""
    value = step.value(0)
    rows = _first(value)
    if rows is None:
        return [without_rows(None)] * len(step.node.output)
    columns = (Size.of(1),) if step.op in ("Scaler", "Normalizer") else ()
    if columns:
        return [made(value.known, rows)]
    outputs = []
    for index in range(len(step.node.output)):
        labels = step.op.endswith("Classifier") and index == 0
        outputs.append(made([rows.size] if labels else [rows.size, step.size(1, index)], rows))
    return outputs


def _first(value: Value) -> Rows | None:
    """The rows of a tensor whose axis 0 has them. Raises RowsMayMix."""
    no_counts([value])
    rows = only_values(value)
    if rows is not None and rows.axis != 0:
        raise RowsMayMix(f"it works along axis {rows.axis}, along which the rows of a batch lie")
    return rows


def _reduced(value: Value, gone: set[int], rows: Rows | None, *, keep: bool) -> Value:
    if keep:
        return made([ONE if a in gone else size for a, size in enumerate(value.known)], rows)
    dims = [size for axis, size in enumerate(value.known) if axis not in gone]
    if rows is None:
        return without_rows(dims)
    return made(dims, rows.at(rows.axis - sum(axis < rows.axis for axis in gone)))


_KEEP_SIZES = frozenset(
    {"BatchNormalization", "InstanceNormalization", "LRN", "GroupNormalization"}
)
_POOL_ALL = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})


def _picture(step: OperatorStep, value: Value, rows: Rows | None) -> Value:
    """The output of an operator on pictures, with formulas where they are easy to tell."""
    dims = list(value.known)
    if step.op in _KEEP_SIZES:
        return made(dims, rows)
    if step.op in _POOL_ALL or step.op == "QLinearGlobalAveragePool":
        return made([*dims[:2], *[ONE] * (len(dims) - 2)], rows)
    if step.op in ("DepthToSpace", "SpaceToDepth"):
        block = Size.of(int(step.attribute("blocksize")))
        channels, high, wide = dims[1:4]
        if step.op == "DepthToSpace":
            fewer = channels.over(block * block)
            sizes = [fewer or step.size(1), high * block, wide * block]
        else:
            less = [high.over(block) or step.size(2), wide.over(block) or step.size(3)]
            sizes = [channels * block * block, *less]
        return made([dims[0], *sizes], rows)
    if "Conv" in step.op:
        weight = step.value(3 if step.op == "QLinearConv" else 1).known
        group = Size.of(int(step.attribute("group", 1)))
        channels = weight[1] * group if step.op == "ConvTranspose" else weight[0]
        kernel = weight[2:]
    else:
        channels = dims[1]
        kernel = tuple(Size.of(int(n)) for n in step.attribute("kernel_shape"))
    spatial = [
        _window(step, axis, size, kernel[axis].number) or step.size(axis + 2)
        for axis, size in enumerate(dims[2:])
    ]
    return made([dims[0], channels, *spatial], rows)


def _window(step: OperatorStep, axis: int, size: Size, kernel: int | None) -> Size | None:
    """The size that a window leaves of an axis; None where no formula is easy to tell."""
    if size.number is None or kernel is None or step.op == "ConvTranspose":
        return None
    count = len(step.value(0).known) - 2
    stride = (step.attribute("strides") or [1] * count)[axis]
    kernel = ((step.attribute("dilations") or [1] * count)[axis]) * (kernel - 1) + 1
    padding = step.attribute("auto_pad", b"NOTSET")
    if padding in (b"SAME_UPPER", b"SAME_LOWER"):
        return Size.of(-(-size.number // stride))
    pads = step.attribute("pads") or [0] * 2 * count
    room = size.number + (pads[axis] + pads[axis + count] if padding == b"NOTSET" else 0) - kernel
    if step.attribute("ceil_mode", 0):
        return None
    return Size.of(room // stride + 1)
