"""What a model is for: how a picture becomes its input, and its outputs become results."""

from shards.cameras.documents import document, lines
from shards.cameras.picture import decode_picture, read_picture
from shards.cameras.results import Classes, DepthGrid, Detections, Embedding, Masks, Segments, Text
from shards.cameras.task import Postprocess, Preprocess, Result, Task

__all__ = [
    "Classes",
    "DepthGrid",
    "Detections",
    "Embedding",
    "Masks",
    "Postprocess",
    "Preprocess",
    "Result",
    "Segments",
    "Task",
    "Text",
    "decode_picture",
    "document",
    "lines",
    "read_picture",
]
