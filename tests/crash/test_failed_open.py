"""A log that cannot be opened because its disk fails can be opened when the disk is well again, in the same process."""

from __future__ import annotations

import shutil
from itertools import count

import pytest

import holdfast
from holdfast import HoldfastError
from holdfast.testing import FaultyDisk
from holdfast.testing.fault import Fault

pytestmark = pytest.mark.crash


def test_a_disk_that_fails_for_good_while_opening_leaves_no_lock_behind(tmp_path):
    """At whichever step (here: every third): the journal may be open by then, and closing it fails, too."""
    template = tmp_path / "template"
    with holdfast.open(template / "log") as log:
        log.topic("t").append(b"first")
        log.seal()
        log.topic("t").append(b"second")
    for nth in count(1, 3):
        root = shutil.copytree(template, tmp_path / f"{nth}")
        with FaultyDisk(root, fail=Fault(nth, "eio", sticky=True)) as disk:
            try:
                holdfast.open(root / "log").close()
            except HoldfastError as error:
                assert error.hint
            disk.disarm()
        with holdfast.open(root / "log") as log:
            assert [record.payload for record in log.topic("t").read()] == [b"first", b"second"]
        shutil.rmtree(root)
        if not disk.fired:
            assert nth > 10
            return
