"""What a model is for: how a picture becomes its input, and its outputs become results."""

from shards.task.documents import document, lines
from shards.task.picture import decode_picture, read_picture
from shards.task.results import Classes, Detections, Embedding, Segments
from shards.task.task import Postprocess, Preprocess, Result, Task

__all__ = [
    "Classes",
    "Detections",
    "Embedding",
    "Postprocess",
    "Preprocess",
    "Result",
    "Segments",
    "Task",
    "decode_picture",
    "document",
    "lines",
    "read_picture",
]
