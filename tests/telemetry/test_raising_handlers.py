"""A logging handler of the application that raises ends no thread: records are stored, sealed and shipped."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.loggers import NAMES, OwnLogger

pytestmark = pytest.mark.disk

SOURCES = Path(__file__).parents[2] / "src"


class Raising(logging.Handler):
    """Raises for every line, and counts them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.actions: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.actions.append(getattr(record, "action", ""))
        raise RuntimeError("a handler of the application")


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[Raising]:
    handler, logger = Raising(), logging.getLogger("holdfast")
    monkeypatch.setattr(OwnLogger, "failures", 0)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_the_roller_and_the_shipper_go_on(
    tmp_path: Path, raising: Raising, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        topic = log.topic("orders")
        for _ in range(3):
            topic.append(b"x")
            log.seal()
            assert topic.append(b"y", durability="shipped")
            log.ship()
        assert log.marks("orders")[0].shipped == 6
    assert {"opened", "sealed", "closed"} <= set(raising.actions)
    assert not {"roller_died", "shipping_ended"} & set(raising.actions)
    assert [record.action for record in caplog.records if getattr(record, "action", "") == "sealed"]  # type: ignore[attr-defined]
    assert capfd.readouterr().err.count("a logging handler raised RuntimeError") == 1


def test_a_failing_store_is_retried_though_nobody_can_hear_of_it(tmp_path: Path, raising: Raising) -> None:
    store = tmp_path / "store"
    with holdfast.open(tmp_path / "log", store=store, settings={"shipping": {"retry_delay_max_ms": 100}}) as log:
        topic = log.topic("orders")
        topic.append(b"x", durability="shipped")
        store.rename(tmp_path / "away")
        store.write_text("in the way")
        ticket = topic.submit(b"y")
        with pytest.raises(holdfast.Unavailable):
            ticket.shipped(0.3)
        store.unlink()
        (tmp_path / "away").rename(store)
        assert ticket.shipped(60).offset == 1


def test_all_loggers_are_such() -> None:
    """A module that logs under another name would not be protected."""
    found = {
        name
        for path in SOURCES.rglob("*.py")
        for name in re.findall(r'getLogger\("(holdfast(?:[^"]*))"\)', path.read_text())
    }
    assert found == set(NAMES)
    assert all(isinstance(logging.getLogger(name), OwnLogger) for name in NAMES)
