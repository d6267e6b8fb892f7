"""One real Spark for all tests that ask for it: `spark`.

It runs in a JVM of its own, with two threads, starts when the first test needs it (some seconds) and ends with the
test run; that its JVM is then gone is checked, not hoped for. Everything that it writes goes to a temporary
directory, and no setting of the machine reaches it: the environment is made for it, only while it starts.

Importing this file costs nothing: pyspark is loaded by the fixture.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_holdfast
from pyspark_holdfast.java import java_home
from pyspark_holdfast.spark_session import java_options, socket_settings
from tests.spark.jvm import BRIEF, end_jvm
from tests.store.conftest import prefix, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prefix", "s3_server"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A SparkSession: local[2], UTC, quiet, nothing left behind."""
    with running(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """UTC in this process too: `collect` makes datetimes in the zone of the process, not in that of the session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@contextmanager
def running(directory: Path) -> Iterator[SparkSession]:
    """Start a Spark that writes only below this directory; it is gone afterwards."""
    from pyspark.sql import SparkSession

    try:
        with environment(directory):
            builder = SparkSession.builder.master("local[2]").config(map=settings(directory))
            session = pyspark_holdfast.configure(builder).getOrCreate()
        yield session
        session.stop()
    finally:
        end_jvm()


@contextmanager
def environment(directory: Path) -> Iterator[None]:
    """The environment that a JVM is started in; Spark reads it only then."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_", "HADOOP_"))]:
            patch.delenv(name)
        patch.setenv("JAVA_HOME", str(java_home(os.environ, directory / "java")))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        yield


def settings(directory: Path) -> dict[str, bool | float | int | str | None]:
    """Small, in UTC, and at home in one directory."""
    return {
        "spark.driver.extraJavaOptions": f"{BRIEF} {java_options(directory)}",
        "spark.executorEnv.TZ": "UTC",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.adaptive.enabled": "false",  # plans stay as they are explained
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        **socket_settings(directory),
    }
