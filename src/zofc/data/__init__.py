"""Images, in which order, in which tasks: sources, streams, views and batches."""

from zofc.data import cifar100, domainnet, folder, glyphs, imagenet_r, parquet  # noqa: F401 (each registers its source)
from zofc.data.concat import join
from zofc.data.loading import Loader
from zofc.data.source import (
    SOURCES,
    ArrayImages,
    EncodedImages,
    Images,
    ImageSet,
    Source,
    SourceOptions,
    describe_sources,
    open_source,
)
from zofc.data.stream import DomainStream, Stream, Task, class_order, split_classes
from zofc.data.views import Crops, TestView, TrainView

__all__ = [
    "SOURCES",
    "ArrayImages",
    "Crops",
    "DomainStream",
    "EncodedImages",
    "ImageSet",
    "Images",
    "Loader",
    "Source",
    "SourceOptions",
    "Stream",
    "Task",
    "TestView",
    "TrainView",
    "class_order",
    "describe_sources",
    "join",
    "open_source",
    "split_classes",
]
