"""One real Spark for all tests that ask for it: `spark`.

It runs in a JVM of its own, with two threads, starts when the first test needs it (some seconds) and ends with the
test run; that its JVM is then gone is checked, not hoped for. Everything that it writes goes to a temporary
directory, and no setting of the machine reaches it: the environment is made for it, only while it starts.

Importing this file costs nothing: pyspark is loaded by the fixture.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pyspark_holdfast
from pyspark_holdfast.java import java_home
from pyspark_holdfast.spark_session import java_options, socket_settings
from pyspark_holdfast.versions.newest_java import newest_java
from tests.spark.jvm import BRIEF, end_jvm
from tests.store.conftest import prefix, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["prefix", "s3_server"]

REFUSAL = re.compile(r"this needs Spark [\d.]+ or newer: .*")
"""What an older Spark cannot do is refused with this; on the newest nothing is."""


def before(*version: int) -> bool:
    """Whether this Spark is older: for what Spark itself did otherwise before."""
    from pyspark_holdfast.versions.supported import spark_version

    return tuple(int(number) for number in spark_version().split(".")[:2]) < version


def is_older() -> bool:
    """Whether this is not the newest Spark: `script/test spark-matrix`."""
    from pyspark_holdfast.versions.supported import NEWEST

    return before(*NEWEST)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An older Spark leaves it to Python to close its sockets, and Python complains about that."""
    if is_older():
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is refused on an older Spark, in our words, counts as skipped."""
    report = yield
    refusal = REFUSAL.search(str(call.excinfo.value)) if call.excinfo is not None and report.failed else None
    if refusal is not None and is_older():
        report.outcome = "skipped"
        report.longrepr = (str(report.location[0]), report.location[1] or 0, f"Skipped: {refusal[0]}")
    return report


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
        patch.setenv("JAVA_HOME", str(java_home(os.environ, directory / "java", newest_java())))
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
