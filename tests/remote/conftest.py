"""One server for most tests of clients, with topics of each test's own; those that kill it have their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from holdfast import Log
from tests.remote.cutting_proxy import CuttingProxy
from tests.remote.served import ServedLog

_numbers = count()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with ServedLog(tmp_path_factory.mktemp("served") / "log") as server:
        yield server


@pytest.fixture(scope="session")
def risen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with ServedLog(tmp_path_factory.mktemp("mortal") / "log") as server:
        yield server


@pytest.fixture
def mortal(risen: ServedLog) -> ServedLog:
    """A server that a test may kill."""
    risen.rise()
    return risen


@pytest.fixture
def remote(served: ServedLog) -> Iterator[Log]:
    with served.connect() as log:
        yield log


@pytest.fixture
def proxy(served: ServedLog) -> Iterator[CuttingProxy]:
    with CuttingProxy(served.upstream) as between:
        yield between


@pytest.fixture
def name() -> str:
    """A topic's name that no other test uses."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def names() -> Callable[[], str]:
    return lambda: f"topic-{next(_numbers)}"
