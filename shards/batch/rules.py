"""Which rule an operator has, by its domain and name. An operator without a rule is a doubt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shards.batch import along, elementwise, indexing, layout, products
from shards.batch.step import Rule
from shards.graph.graph import RANDOM


def _all(rule: Rule, operators: str, domain: str = "") -> Iterable[tuple[tuple[str, str], Rule]]:
    return (((domain, operator), rule) for operator in operators.split())


RULES: Mapping[tuple[str, str], Rule] = dict(
    [
        *_all(
            elementwise.elementwise,
            "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
            "BitwiseXor Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater "
            "GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max "
            "Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid "
            "Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor",
        ),
        *_all(elementwise.unchanged, "Cast CastLike Identity"),
        *_all(elementwise.dropout, "Dropout"),
        *_all(elementwise.scaled, "QuantizeLinear DequantizeLinear"),
        *_all(elementwise.scales_whole, "DynamicQuantizeLinear"),
        *_all(elementwise.draws, " ".join(sorted(RANDOM))),
        *_all(layout.shape, "Shape"),
        *_all(layout.size, "Size"),
        *_all(layout.reshape, "Reshape"),
        *_all(layout.flatten, "Flatten"),
        *_all(layout.squeeze, "Squeeze"),
        *_all(layout.unsqueeze, "Unsqueeze"),
        *_all(layout.transpose, "Transpose"),
        *_all(layout.concat, "Concat"),
        *_all(layout.split, "Split"),
        *_all(layout.slices, "Slice"),
        *_all(layout.expand, "Expand"),
        *_all(layout.tile, "Tile"),
        *_all(layout.filled, "ConstantOfShape"),
        *_all(layout.counts_up, "Range"),
        *_all(layout.pad, "Pad"),
        *_all(indexing.gather, "Gather"),
        *_all(indexing.gather_elements, "GatherElements"),
        *_all(indexing.gather_nd, "GatherND"),
        *_all(indexing.scatter_elements, "ScatterElements Scatter"),
        *_all(indexing.scatter_nd, "ScatterND"),
        *_all(indexing.one_hot, "OneHot"),
        *_all(indexing.triangle, "Trilu"),
        *_all(indexing.compressed, "Compress"),
        *_all(indexing.boxes, "NonMaxSuppression NonZero Unique"),
        *_all(
            along.reduced,
            "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin "
            "ReduceSumSquare",
        ),
        *_all(along.product_of_sizes, "ReduceProd ReduceSum"),
        *_all(along.largest_at, "ArgMax ArgMin"),
        *_all(along.along_one, "CumSum LpNormalization"),
        *_all(along.softmax, "Softmax LogSoftmax Hardmax"),
        *_all(along.layer_norm, "LayerNormalization RMSNormalization"),
        *_all(along.layer_norm, "SimplifiedLayerNormalization"),
        *_all(along.whole_norm, "MeanVarianceNormalization"),
        *_all(along.top, "TopK"),
        *_all(
            along.pictures,
            "AveragePool BatchNormalization Conv ConvInteger ConvTranspose DepthToSpace "
            "GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization "
            "LRN LpPool MaxPool QLinearConv SpaceToDepth",
        ),
        *_all(along.sampled, "GridSample"),
        *_all(along.resized, "Resize Upsample"),
        *_all(along.sequences, "RNN GRU LSTM"),
        *_all(products.matmul, "MatMul"),
        *_all(products.integer_matmul, "MatMulInteger QLinearMatMul"),
        *_all(products.gemm, "Gemm"),
        *_all(products.einsum, "Einsum"),
        *_all(products.attention, "Attention"),
        *_all(elementwise.elementwise, "BiasGelu FastGelu Gelu QuickGelu", "com.microsoft"),
        *_all(
            elementwise.scales_whole, "DynamicQuantizeMatMul DynamicQuantizeLSTM", "com.microsoft"
        ),
        *_all(along.skip_norm, "SkipLayerNormalization", "com.microsoft"),
        *_all(along.skip_norm, "SkipSimplifiedLayerNormalization", "com.microsoft"),
        *_all(along.layer_norm, "SimplifiedLayerNormalization", "com.microsoft"),
        *_all(products.weighted, "MatMulNBits", "com.microsoft"),
        *_all(
            along.table_rows,
            "Binarizer Imputer LinearClassifier LinearRegressor Normalizer SVMClassifier "
            "SVMRegressor Scaler TreeEnsembleClassifier TreeEnsembleRegressor",
            "ai.onnx.ml",
        ),
    ]
)
"""From domain and operator to the rule."""
