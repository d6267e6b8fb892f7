"""One real Spark for all tests that ask for it: `spark`.

It runs in a JVM of its own, with two threads, starts when the first test needs it (some seconds) and ends with the
test run; that its JVM is then gone is checked, not hoped for. Everything that it writes goes to a temporary
directory, and no setting of the machine reaches it: the environment is made for it, only while it starts.

Importing this file costs nothing: pyspark is loaded by the fixture.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE = 60
"""Seconds for the JVM to end."""

# The root stays at warn: pyspark sets any other level back to WARN, and says so. NativeCodeLoader tells that Hadoop
# has no native library here, SparkConf that a cluster would overrule spark.local.dir; neither is news.
QUIET = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
"""

# They print whole stack traces as JSON for every query that fails, whatever the log level.
LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A SparkSession: local[2], UTC, quiet, nothing left behind."""
    for name in LOUD:
        logging.getLogger(name).disabled = True
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
            session = SparkSession.builder.master("local[2]").config(map=settings(directory)).getOrCreate()
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
    log_settings, temporary = directory / "log4j2.properties", directory / "tmp"
    log_settings.write_text(QUIET, encoding="ascii")
    temporary.mkdir()
    java_options = (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives for seconds: compile little, collect simply
        f" -Dlog4j2.configurationFile={log_settings.as_uri()} -Duser.timezone=UTC"
        f' "-Djava.io.tmpdir={temporary}" "-Dderby.system.home={directory}"'
    )
    return {
        "spark.driver.extraJavaOptions": java_options,
        "spark.executorEnv.TZ": "UTC",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.adaptive.enabled": "false",  # plans stay as they are explained
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def end_jvm() -> None:
    """End the JVM that pyspark started, and wait until it has ended; SparkSession.stop leaves it running."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    jvm: subprocess.Popen[bytes] = gateway.proc
    assert jvm.stdin is not None
    jvm.stdin.close()  # it ends when its standard input does
    try:
        jvm.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
        raise
