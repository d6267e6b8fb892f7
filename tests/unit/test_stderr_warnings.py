"""The last resort: a line on stderr per warning, where nobody else listens, and nothing that steers a terminal."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager

import pytest

from holdfast.loggers import StderrWarnings

pytestmark = pytest.mark.unit


@contextmanager
def alone():
    """A logger like ours that nobody else hears; within a test, for pytest listens to all that there are before."""
    top, below = logging.getLogger("last-resort"), logging.getLogger("last-resort.below")
    top.propagate = False
    top.addHandler(StderrWarnings())
    try:
        yield below
    finally:
        top.handlers.clear()
        below.handlers.clear()
        top.propagate = True


def test_warnings_and_worse_are_one_line_each(capsys):
    """Whatever stands in a message, it stays on its line; what is only information is not shown."""
    with alone() as logger:
        logger.info("nothing")
        logger.warning("a store says %s", "\x1b[2J\nholdfast: error: forged\u202e")
        logger.error("worse")
    assert capsys.readouterr().err.splitlines() == [
        r"holdfast: warning: a store says \x1b[2J\nholdfast: error: forged\u202e",
        "holdfast: error: worse",
    ]


@pytest.mark.parametrize("where", ["last-resort", "last-resort.below"])
def test_an_application_that_listens_is_not_talked_over(capsys, where):
    """A handler on the way, also one that does nothing."""
    with alone() as logger:
        logging.getLogger(where).addHandler(logging.NullHandler())
        logger.warning("heard elsewhere")
    assert capsys.readouterr().err == ""


def test_a_process_without_stderr_goes_on(monkeypatch):
    """As a service of some platforms has it."""
    monkeypatch.setattr(sys, "stderr", None)
    with alone() as logger:
        logger.warning("to nobody")
