"""holdfast for Spark: `spark.read.format("holdfast")`, streams, and a fast path over Spark's own Parquet reader.

    import pyspark_holdfast

    spark = pyspark_holdfast.session()
    orders = spark.read.format("holdfast").option("topic", "orders").load("s3://bucket/prefix")

Spark needs no registration. The first time it meets a format that it does not know, it imports every `pyspark_*` module
that is installed. So importing this one is cheap and never raises; pyspark and pyarrow are loaded on first use. Where
the format cannot be used (another Spark, a package that is missing), what Spark finds says so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_holdfast.lag import LagListener
    from pyspark_holdfast.native import PathTaken, read
    from pyspark_holdfast.native_rule import accelerate, path_of
    from pyspark_holdfast.native_stream import NativeStream, read_stream
    from pyspark_holdfast.read_marks import marks_of, settled_marks
    from pyspark_holdfast.source import HoldfastSource as DefaultSource
    from pyspark_holdfast.spark_session import configure, register, session
    from pyspark_holdfast.types import trace_id

_HOMES = {
    "DefaultSource": "source:HoldfastSource",
    "LagListener": "lag",
    "NativeStream": "native_stream",
    "PathTaken": "native",
    "accelerate": "native_rule",
    "configure": "spark_session",
    "marks_of": "read_marks",
    "path_of": "native_rule",
    "read": "native",
    "read_stream": "native_stream",
    "register": "spark_session",
    "session": "spark_session",
    "settled_marks": "read_marks",
    "trace_id": "types",
}

__all__ = [
    "DefaultSource",
    "LagListener",
    "NativeStream",
    "PathTaken",
    "accelerate",
    "configure",
    "marks_of",
    "path_of",
    "read",
    "read_stream",
    "register",
    "session",
    "settled_marks",
    "trace_id",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pyspark_holdfast' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    try:
        problem = _problem(f"pyspark_holdfast.{module}")
        if problem is not None:
            return _refused(name, problem)
        value = getattr(import_module(f"pyspark_holdfast.{module}"), attribute or name)
    except ImportError as error:
        # AttributeError, so that Spark's search passes us over and other packages keep working.
        raise AttributeError(
            f"pyspark_holdfast.{name} needs more: pip install 'holdfast-log[spark]' ({error})"
        ) from error
    globals()[name] = value
    return value


def _problem(module: str) -> Exception | None:
    """Why this Spark cannot have a module of ours: it is another one, or a package is missing. None without a Spark."""
    try:
        supported = import_module("pyspark_holdfast.versions.supported")
    except ImportError:
        return None
    found: Exception | None = supported.problem(module)
    return found


def _refused(name: str, problem: Exception) -> object:
    """Raise it; but Spark must find a format, or it says that there is none."""
    if name != "DefaultSource":
        raise problem
    return import_module("pyspark_holdfast.versions.refusing_source").RefusingSource


def __dir__() -> list[str]:
    return sorted(__all__)
