"""How several workers (pytest-xdist) share the tests: by file, the long ones first, and all of Spark with one worker.

One JVM serves the tests of Spark, and others that start one of their own come after them, so that two never compete:
Spark gives a Python worker ten seconds to start. What takes long begins first; then nobody waits for the last one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

JVM = ("tests/spark/", "tests/cli/test_spark.py", "tests/docs/test_docs.py")
FIRST = (*JVM, "tests/crash/", "tests/simulation/", "tests/hostile/", "tests/disk/test_tampering.py", "tests/store/")
"""From the longest on; all others come after them."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def rank(nodeid: str) -> int:
    """The place of a test's folder."""
    return next((rank for rank, folder in enumerate(FIRST) if nodeid.startswith(folder)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class ByJvmAndFile(LoadFileScheduling):
        """Files, but for those that share a JVM."""

        def _split_scope(self, nodeid: str) -> str:
            return "JVM" if nodeid.startswith(JVM) else super()._split_scope(nodeid)

    return ByJvmAndFile(config, log)
