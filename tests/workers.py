"""How several workers (pytest-xdist) share the tests: by file, the long ones first, and all of Spark with one worker.

One JVM serves all tests of Spark, so they stay together. What takes long begins first: whoever ends last then ends soon
after the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

SPARK = "tests/spark/"
FOLDERS = (SPARK, "tests/cli/test_spark", "tests/docs", "tests/crash", "tests/hostile", "tests/store", "tests/disk")
"""From the longest on; all others come after them."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def rank(nodeid: str) -> int:
    """The place of a test's folder."""
    return next((rank for rank, folder in enumerate(FOLDERS) if nodeid.startswith(folder)), len(FOLDERS))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    from xdist.scheduler import LoadFileScheduling

    class ByJvmAndFile(LoadFileScheduling):
        """Files, but for those that share a JVM."""

        def _split_scope(self, nodeid: str) -> str:
            return SPARK if nodeid.startswith(SPARK) else super()._split_scope(nodeid)

    return ByJvmAndFile(config, log)
