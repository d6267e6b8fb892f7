"""A log that cannot be opened because its disk fails can be opened when the disk is well again, in the same process."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

import holdfast
from holdfast.testing import FaultyDisk
from tests.harness.faults import attempt, fail_at

pytestmark = pytest.mark.crash


def test_a_disk_that_fails_for_good_while_opening_leaves_no_lock_behind(tmp_path):
    """At whichever step (here: every third): the journal may be open by then, and closing it fails, too."""
    template = tmp_path / "template"
    with holdfast.open(template / "log") as log:
        log.topic("t").append(b"first")
        log.seal()
        log.topic("t").append(b"second")
    looked = 0
    for failed in fail_at(tmp_path, "eio", count(1, 3), open_and_close, template=template, sticky=True):
        looked += 1
        with holdfast.open(failed.root / "log") as log:
            assert [record.payload for record in log.topic("t").read()] == [b"first", b"second"]
    assert looked > 3


def open_and_close(root: Path, disk: FaultyDisk) -> None:
    attempt(lambda: holdfast.open(root / "log").close())
