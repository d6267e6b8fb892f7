"""The power is cut at every step of a rebuild: rebuilt again, the log holds everything that could be brought back."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Corrupt
from tests.crash.segment_cuts import life, look
from tests.crash.segment_workload import Notes, fill, open_log
from tests.sampling import Some

pytestmark = pytest.mark.crash


def prepare(directory: Path, notes: Notes, *, lost: bool) -> None:
    """A log whose database is gone, with nothing but segments; or one whose database is there, with a tail."""
    with notes.open(directory, seal_on_close=lost) as log:
        for turn in ("a", "b"):
            fill(log, notes, turn)
            log.seal()
        fill(log, notes, "c")
    if lost:
        for path in directory.glob("durable.db*"):
            path.unlink()


def rebuild(directory: Path, notes: Notes) -> None:
    report = holdfast.rebuild(directory, keyring=notes.keyring)
    assert report.records >= len(notes.acked) - report.salvaged


@pytest.mark.parametrize("lost", [True, False], ids=["database lost", "database set aside"])
def test_a_cut_at_any_step_of_a_rebuild_loses_nothing(tmp_path, lost, some):
    """Whatever a cut leaves opens as it is or says that it must be rebuilt, and then nothing is missing."""
    examine_rebuild(tmp_path, lambda cuts: some(cuts, 20), lost=lost, keyed=lost)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("lost", [True, False], ids=["database lost", "database set aside"])
def test_every_state_after_a_cut_of_a_rebuild(tmp_path, lost, keyed):
    """The same at every step, in up to forty states each."""
    examine_rebuild(tmp_path, list, lost=lost, keyed=keyed, states=40)


def examine_rebuild(tmp_path: Path, choose: Some, *, lost: bool, keyed: bool, states: int | None = None) -> None:
    notes = Notes(keyed=keyed)
    prepare(tmp_path / "disk" / "log", notes, lost=lost)
    cuts = life(tmp_path / "disk", notes, rebuild)
    again = 0

    def repair(directory: Path) -> None:
        nonlocal again
        try:
            open_log(directory, notes.keyring).close()
        except Corrupt:
            again += 1
            holdfast.rebuild(directory, keyring=notes.keyring)

    chosen = cuts if states else [cut for turn, cut in enumerate(cuts) if cut.ours or turn % 5 == 0]
    taken = choose(chosen)
    looked = look(taken, notes, tmp_path / "states", states, repair)
    assert looked > 10
    assert again > 0 or len(taken) < len(chosen), "no cut made it necessary to rebuild again"
    print(f"{len(cuts)} cuts, {looked} states, {again} rebuilt again, all whole")
