"""The newest Java that a Spark runs on: without Hadoop 3.5, which came with 4.2, none from 24 on.

Java 24 removed what older ones ask it for (the subject of a thread): Spark fails when it starts, or at its first file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyspark

_BEFORE_HADOOP_3_5 = 23
_VERSION = re.compile(r"hadoop-client-api-(\d+)\.(\d+)\D.*\.jar")


def newest_java(spark_home: str | None = None) -> int | None:
    """Its version; None where any will do, as far as is known."""
    home = Path(spark_home or os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    found = [_VERSION.fullmatch(path.name) for path in home.glob("jars/hadoop-client-api-*.jar")]
    versions = [(int(match[1]), int(match[2])) for match in found if match is not None]
    return _BEFORE_HADOOP_3_5 if versions and max(versions) < (3, 5) else None
