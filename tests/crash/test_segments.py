"""Power cuts at every step of sealing, trimming, expiring, opening and repairing.

The steps are enumerated, not drawn: a snapshot is taken before every I/O step of a life (`segment_workload`), and each
is laid out in states that the disk may legally be in (`segment_cuts`). Each planted bug is found by the very same
examination.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from holdfast import disk
from holdfast.journal.commit import manifest_changes
from holdfast.journal.state.operations import Trim
from holdfast.segments.retention.retention import Retention
from holdfast.segments.sealing import leftovers, seal
from holdfast.segments.sealing.seal import Sealer
from tests.crash.segment_cuts import POINTS, at, life, look, sample
from tests.crash.segment_workload import Notes, Promise
from tests.harness.cuts import Cut

pytestmark = pytest.mark.crash


Life = tuple[Notes, list[Cut[Promise]]]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Life]:
    """The life, recorded once without keys and once with them: `lives(keyed)`."""

    @cache
    def lived(keyed: bool) -> Life:
        notes = Notes(keyed=keyed)
        return notes, life(tmp_path_factory.mktemp("life") / "disk", notes)

    return lived


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_a_cut_at_any_step_loses_nothing(tmp_path, lives, keyed, some):
    """Before each step of a life the power is cut: records once, marks not behind, nothing to reconcile."""
    notes, cuts = lives(keyed)
    every = sample(cuts)
    assert len(every) > 180
    assert look(some(every, 40), notes, tmp_path / "states") >= 40


@pytest.mark.parametrize("point", POINTS)
def test_a_cut_at_each_point_loses_nothing(tmp_path, lives, point, some):
    """The list of moments is real: each of them is a step of the life, and one such step is cut."""
    notes, cuts = lives(False)
    assert look(some(at(cuts, point), 1), notes, tmp_path / "states") > 0


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_every_state_after_a_cut_at_every_step(tmp_path, lives, keyed):
    """The same at every step there is, in up to sixty states each."""
    notes, cuts = lives(keyed)
    looked = look(cuts, notes, tmp_path / "states", 60)
    print(f"{len(cuts)} cuts, {looked} states, all whole")


RECOVERIES = [
    "it gets its name",
    "the name is synced, or a removal",
    "an expired segment is removed",
    "garbage is removed",
    "a misplaced segment is put back",
]


@pytest.mark.parametrize("point", RECOVERIES)
def test_a_cut_while_recovering_from_a_cut_loses_nothing(tmp_path, lives, point, some, is_sampled):
    """What opening does about a crash may itself be cut at any step."""
    notes, cuts = lives(True)
    first, last = at(cuts, point)[0], at(cuts, point)[-1]
    looked = 0
    for number, cut in enumerate(some([first, last], 1)):
        *_, everything = cut.power.states(limit=2)  # as kill -9 leaves it: what was done is there
        root = everything.materialise(tmp_path / f"left-{number}")
        again = [cut for cut in life(root, notes_at(notes, cut.promise), recover) if cut.ours]
        looked += look(some(again, 8), notes, tmp_path / f"states-{number}")
    assert looked > (5 if is_sampled else 20)


def notes_at(notes: Notes, promise: Promise) -> Notes:
    """Notes as they were when the promise was made."""
    then = notes.copy()
    then.acked, then.strangers = dict(promise.acked), dict(promise.strangers)
    then.retained, then.untidy = promise.retained, promise.untidy
    return then


def recover(directory: Path, notes: Notes) -> None:
    """Open, repair what was planted, seal."""
    with notes.open(directory) as log:
        if notes.untidy:
            log.reconcile(fix=True)
        log.seal()


# -- planted bugs -----------------------------------------------------------------------------------------


class _Disk:
    """The disk as one module sees it, with some of its functions replaced."""

    def __init__(self, **replaced: object) -> None:
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> object:
        return getattr(disk, name)


def _rename_before_fsync(patch: pytest.MonkeyPatch) -> None:
    def rename_then_sync(source: Path, target: Path) -> None:
        disk.rename(source, target)
        descriptor = disk.syscalls.open(target, 1)
        disk.syscalls.fsync(descriptor)
        disk.syscalls.close(descriptor)

    patch.setattr(disk.NewFile, "finish", disk.NewFile.close)
    patch.setattr(seal, "disk", _Disk(rename=rename_then_sync))


def _row_before_file(patch: pytest.MonkeyPatch) -> None:
    waiting: list[tuple[Path, Path]] = []
    commit = Sealer._commit

    def commit_then_rename(self: Sealer, *arguments: object) -> None:
        commit(self, *arguments)  # type: ignore[arg-type]
        disk.rename(*waiting.pop())

    patch.setattr(seal, "disk", _Disk(rename=lambda source, target: waiting.append((source, target))))
    patch.setattr(Sealer, "_commit", commit_then_rename)


def _trim_before_watermark(patch: pytest.MonkeyPatch) -> None:
    commit = Sealer._commit

    def trim_all(backend, operation) -> None:
        removed = backend.trim_entries(operation.partition.id, operation.partition.durable, operation.slice_max)
        operation.change = operation.change._replace(entries=-len(removed))

    def trim_then_commit(self: Sealer, partition, *rest) -> None:
        self._journal.perform(Trim(partition, 1000))
        commit(self, partition, *rest)

    patch.setattr(manifest_changes, "trim", trim_all)
    patch.setattr(Sealer, "_commit", trim_then_commit)


def _unlink_before_commit(patch: pytest.MonkeyPatch) -> None:
    expire = Retention._expire

    def unlink_then_expire(self: Retention, partition, end: int) -> None:
        for row in self._manifest.rows(partition, partition.sealed.first_segment, end):
            disk.remove(self._manifest.path(partition, row))
        expire(self, partition, end)

    patch.setattr(Retention, "_expire", unlink_then_expire)


def _no_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "sync_directory", lambda path: None)


def _no_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leftovers, "_is_unlisted", lambda journal, partition, path: True)


BUGS = {
    "rename before fsync": (_rename_before_fsync, "the name is synced, or a removal"),
    "manifest row before the file": (_row_before_file, "the name is synced, or a removal"),
    "trim before the watermark": (_trim_before_watermark, "a commit is synced"),
    "unlink before the commit": (_unlink_before_commit, "the name is synced, or a removal"),
    "no directory sync": (_no_directory_sync, "a segment is begun"),
    "leftovers removed without proof": (_no_proof, "the quarantine is made"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bug", BUGS)
def test_the_examination_would_notice(tmp_path, monkeypatch, bug):
    """Each classic mistake, planted: some state breaks a promise."""
    plant, point = BUGS[bug]
    notes = Notes()
    with monkeypatch.context() as patch:
        plant(patch)
        cuts = at(life(tmp_path / "disk", notes), point)
        with pytest.raises(AssertionError, match="cut before step"):
            look(cuts, notes, tmp_path / "states", 12)
