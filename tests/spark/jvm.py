"""JVMs of tests: what they are started with, and their end, because SparkSession.stop leaves them running."""

from __future__ import annotations

import subprocess

BRIEF = (
    "-XX:TieredStopAtLevel=1 -XX:-UseCodeCacheFlushing -XX:+UseSerialGC -XX:NewRatio=1 -XX:MetaspaceSize=256m"
    " -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""A JVM that lives for seconds: compile little and keep it, collect seldom, and trust the classes that Spark brings."""
PATIENCE = 60
"""Seconds for the JVM to end."""


def end_jvm() -> None:
    """End the JVM of this process, if there is one, and wait until it has ended."""
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
