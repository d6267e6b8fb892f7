"""A Spark that is ready for holdfast: settings that make Python sources fast, a Java where there is none, and quiet.

`configure` sets what holdfast needs on your builder; `session` makes a complete session for a laptop. Both leave alone
what you have set. The JVM reads its environment once, when it starts, so call them before the first SparkSession of the
process. Nothing is written outside one temporary directory, which is removed when the process ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from pyspark_holdfast.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.ui.showConsoleProgress": "false",
}
"""What `configure` sets."""

# The root stays at warn: pyspark sets any other level back to WARN, and says so. NativeCodeLoader tells that Hadoop
# has no native library, SparkConf that a cluster would overrule spark.local.dir, ResolveWriteToStream that streams do
# without adaptive execution, DAGScheduler that a stopped stream had nothing to do, SparkStringUtils that it shortened a
# plan that nobody sees. Nobody needs these. TaskSetManager and Executor print the stack of an error, Java's and
# Python's, twice; the caller gets it as an exception.
_QUIET = """\
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
logger.stream.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.stream.level = error
logger.stream4.name = org.apache.spark.sql.execution.streaming.ResolveWriteToStream
logger.stream4.level = error
logger.scheduler.name = org.apache.spark.scheduler.DAGScheduler
logger.scheduler.level = error
logger.strings.name = org.apache.spark.util.SparkStringUtils
logger.strings.level = error
logger.task.name = org.apache.spark.scheduler.TaskSetManager
logger.task.level = off
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
"""

# They print whole stack traces as JSON for every query that fails, whatever the log level.
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_MEMORY = "2g"
_SOCKET_PATH_MAX = 55
"""The name of a socket has 108 bytes at most; Spark's own part of it has 46."""


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Set what holdfast needs on a builder: settings, the Python of the workers, a Java, a quiet log.

    What you set on the builder or in the environment stays. Streams of the session may start at the same time, and the
    format is accelerated (`accelerate`).
    """
    from pyspark_holdfast.versions.supported import check_supported

    check_supported()
    present = dict(getattr(builder, "_options", {}))
    _prepare_environment(str(present.get("spark.master", "")))
    for name, value in SETTINGS.items():
        if name not in present:
            builder = builder.config(name, value)
    return _preparing(builder)


def _preparing(builder: SparkSession.Builder) -> SparkSession.Builder:
    """A builder whose session is ready for streams that start at the same time, and reads the format at full speed."""
    from pyspark_holdfast.native_rule import accelerate
    from pyspark_holdfast.start_race import forestall

    make = builder.getOrCreate

    def get_or_create() -> SparkSession:
        session = make()
        forestall(session)
        accelerate(session)
        return session

    builder.getOrCreate = get_or_create  # type: ignore[method-assign]
    return builder


def session(master: str = "local[*]", **settings: str) -> SparkSession:
    """A SparkSession for this machine: quiet, in UTC, leaving nothing behind.

    Further settings as keywords, with `_` for `.`: session(spark_driver_memory="4g").
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise Invalid("Spark needs the extra 'spark'", hint="pip install 'holdfast-log[spark]'") from None
    directory = _scratch()
    own = {
        "spark.driver.extraJavaOptions": java_options(directory),
        "spark.driver.memory": _MEMORY,
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
        **socket_settings(directory),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    builder = SparkSession.builder.master(master).appName("holdfast")
    for name, value in own.items():
        builder = builder.config(name, value)
    return configure(builder).getOrCreate()


def register(spark: SparkSession) -> None:
    """Register the format by hand, if another package keeps Spark from finding it."""
    from pyspark_holdfast.source import HoldfastSource
    from pyspark_holdfast.start_race import forestall
    from pyspark_holdfast.versions.source_registry import register_source

    register_source(spark, HoldfastSource)
    forestall(spark)


def java_options(directory: Path) -> str:
    """Options for a JVM that writes below one directory, uses UTC, and logs little."""
    log_settings, temporary = directory / "log4j2.properties", directory / "tmp"
    log_settings.write_text(_QUIET, encoding="ascii")
    temporary.mkdir(exist_ok=True)
    return (
        f"-Dlog4j2.configurationFile={log_settings.as_uri()} -Duser.timezone=UTC"
        f' "-Djava.io.tmpdir={temporary}" "-Dderby.system.home={directory}"'
    )


def socket_settings(directory: Path) -> dict[str, str]:
    """Settings for a JVM whose temporary files are below a directory: names of Unix sockets must be short."""
    return {} if len(str(directory)) <= _SOCKET_PATH_MAX else {"spark.python.unix.domain.socket.enabled": "false"}


def _prepare_environment(master: str) -> None:
    """What a JVM and its Python workers read from the environment, for as long as this process lives."""
    for name in _LOUD:
        logging.getLogger(name).disabled = True
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):  # the driver of a cluster must be reached from other machines
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark_holdfast.versions.newest_java import newest_java

    os.environ["JAVA_HOME"] = str(java_home(os.environ, _scratch() / "java", newest_java()))


_scratches: list[Path] = []
"""One per process, made when it is first needed."""


def _scratch() -> Path:
    if not _scratches:
        directory = Path(tempfile.mkdtemp(prefix="holdfast-spark-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        _scratches.append(directory)
    return _scratches[0]
