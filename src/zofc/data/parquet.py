"""`parquet:PATH`: a file or a folder of `train-*.parquet` and `test-*.parquet` in the Hugging Face layout."""

from __future__ import annotations

from zofc.data.roots import find_path
from zofc.data.source import Source, SourceOptions, source


@source("parquet")
def parquet(argument: str, options: SourceOptions) -> Source:
    """A relative path is looked for in the working directory, then under $ZOFC_DATA."""
    from zofc.data.shards import read_parquet  # here, so that only those who read shards wait for pyarrow

    path = find_path("parquet", argument, options)
    return read_parquet(f"parquet:{argument or path}", path, options)
