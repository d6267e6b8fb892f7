"""A way around a race in Spark 4.3, so that streams of one driver can start at the same time.

The first query of a Python source puts four names into a map that is shared by all queries and not locked
(`PythonStreamingSourceRunner`). If a second query does the same at that moment, or one of its tasks is being
serialised, the map ends up with a wrong size, and no task of that driver can be sent any more. Setting a name that is
already there is harmless. So we put the names there first: once per JVM, because sessions share the map.
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
"""With Spark's defaults; its user sets it before."""


def forestall(spark: SparkSession) -> None:
    """Put the names there. If that fails, only this protection is missing."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:  # a remote session: its server must do this
        return
    try:
        source = session.sessionState().dataSourceManager().lookupDataSource("holdfast")
        names = source.dataSourceCls().envVars()
        for name, value in _NAMES.items():
            names.putIfAbsent(name, value)
    except (Py4JError, PySparkException):
        return
