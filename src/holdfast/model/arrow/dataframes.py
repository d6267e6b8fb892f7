"""Record batches as what other libraries take: an Arrow table, a C stream, a data frame of Polars or pandas.

Shared by everything that reads as Arrow. A library is loaded when it is used; one that is missing is `Invalid`, with
the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


def polars_frame(table: pa.Table) -> pl.DataFrame:
    """A table as a Polars data frame."""
    frame: pl.DataFrame = _library("polars").from_arrow(table)
    return frame


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    """A table as a pandas data frame."""
    _library("pandas")
    frame: pd.DataFrame = table.to_pandas()
    return frame


def c_stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch], requested_schema: object) -> object:
    """Batches as Arrow's C stream, which Polars, DuckDB, pandas and pyarrow take directly."""
    import pyarrow as pa

    capsule: object = pa.RecordBatchReader.from_batches(schema, batches).__arrow_c_stream__(requested_schema)
    return capsule


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise Invalid(f"{name} is not installed", hint=f"pip install {name}") from None
