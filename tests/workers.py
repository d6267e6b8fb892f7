"""How several workers (pytest-xdist) share the tests: by file, the long ones first, and all of Spark with two workers.

One JVM serves the tests of Spark, in one worker; those that start JVMs of their own run in another, one after the
other, so that never more than two compete: Spark gives a Python worker ten seconds to start. All of them compile
little, because they live for seconds. What takes long begins first; then nobody waits for the last one.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.spark.jvm import BRIEF

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

OWN_JVM = (
    "tests/spark/test_stream_kill.py",
    "tests/spark/test_sink_kill.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_declarative_example.py",
    "tests/docs/test_docs.py",
    "tests/cli/test_spark.py",
    "tests/cli/test_pipeline_verbs.py",
)
JVM = ("tests/spark/",)
FIRST = (
    *OWN_JVM,
    *JVM,
    "tests/crash/",
    "tests/simulation/",
    "tests/hostile/",
    "tests/disk/test_tampering.py",
    "tests/store/",
)
"""From the longest on; all others come after them."""


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it for what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that tests start inherit it
    os.environ.setdefault("SPARK_SUBMIT_OPTS", BRIEF)  # of every JVM that a test starts without saying more


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests live as long as the run: no collection of garbage has to look at them again."""
    gc.freeze()
    atexit.register(gc.unfreeze)


def rank(nodeid: str) -> int:
    """The place of a test's folder."""
    return next((rank for rank, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class ByJvmAndFile(LoadFileScheduling):
        """Files, but for those that share a JVM, or start some."""

        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(OWN_JVM):
                return "JVMs of their own"
            return "JVM" if nodeid.startswith(JVM) else super()._split_scope(nodeid)

    return ByJvmAndFile(config, log)
