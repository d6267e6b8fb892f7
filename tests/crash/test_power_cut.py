"""Power cuts: whatever state the disk may legally be in afterwards, all that was acknowledged is there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.crash.workload import Notes, Place, check, live
from tests.harness.cuts import Cut, examine, record, without_syncs

pytestmark = pytest.mark.crash


def life(root: Path, notes: Notes) -> list[Cut[dict[Place, bytes]]]:
    """A life with appends, batches, rotation, checkpoints, close and reopen."""
    return record(root, lambda disk: live(root / "log", notes), lambda: dict(notes.acked))


def look(copy: Path, acked: dict[Place, bytes], notes: Notes) -> None:
    check(copy / "log", acked, notes)


@pytest.mark.core
def test_every_state_after_a_cut_holds_what_was_acknowledged(tmp_path, some, is_sampled):
    """Cuts at sampled steps."""
    notes = Notes()
    cuts = life(tmp_path / "disk", notes)
    assert len(cuts) > 300
    assert cuts[-1].promise
    assert sum("/groups/" in cut.name and cut.op == "sync" for cut in cuts) > 20, "plain groups go through files"
    sample = [*some(cuts[10:-1], 30, full=110), *some(cuts[:10], 4), cuts[-1]]
    assert examine(sample, partial(look, notes=notes), tmp_path / "states", 6) > (
        2 * len(sample) if is_sampled else 300
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_cut_at_every_step(tmp_path):
    """The same for every step, with many more states."""
    notes = Notes()
    cuts = life(tmp_path / "disk", notes)
    looked = examine(cuts, partial(look, notes=notes), tmp_path / "states", 40)
    print(f"{len(cuts)} cuts, {looked} states, all whole")


def test_this_test_would_notice_a_missing_sync(tmp_path):
    """The planted bug: with synchronous=OFF some state has lost an acknowledged record."""
    notes = Notes()
    with without_syncs():
        cuts = life(tmp_path / "disk", notes)
    with pytest.raises(AssertionError, match="lost:"):
        examine(reversed(cuts), partial(look, notes=notes), tmp_path / "states", 4)
