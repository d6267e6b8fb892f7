"""Streams of one driver may start at once.

The first query of a Python source puts four names into a map that belongs to the source, and not to the query, and that
nobody locks (`PythonStreamingSourceRunner`, Spark 4.3). While a second query does the same, or a task of it is being
sent, the map can get a size that it has not; no task of that driver can be sent from then on. Names that are there
already are only given their values, which harms nobody. So they are put there before: once per JVM, because sessions
share what they find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": "",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""With Spark's defaults; whoever uses one sets it before."""


def forestall(spark: SparkSession) -> None:
    """Put the names there; where that cannot be done, nothing is lost but this."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # a remote one: its server's business
        return
    try:
        source = session.sessionState().dataSourceManager().lookupDataSource("holdfast")
        names = source.dataSourceCls().envVars()
        for name, value in _NAMES.items():
            names.putIfAbsent(name, value)
    except (Py4JError, PySparkException):
        return
