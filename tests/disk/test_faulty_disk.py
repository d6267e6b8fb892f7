"""The faulty disk keeps its own promises: it fails what it was asked to fail, and it never lies about a crash.

Plain SQLite is the subject under test here, because its behaviour is known: with synchronous=FULL it keeps
what it acknowledged, with less it does not. A tool that cannot tell the two apart is worthless, so each
promise about survival stands beside a planted bug that the same check has to catch.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import disk as holdfast_disk
from holdfast.errors import Invalid
from holdfast.testing.disk_change import SECTOR, Change, LinkChange, TruncateChange, WriteChange
from holdfast.testing.fault import Fault, Kind, Op
from holdfast.testing.faulty_disk import FaultyDisk
from holdfast.testing.power_cut import PowerCut

pytestmark = pytest.mark.disk

DATABASE = "log.db"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Path]:
    """Directory names outside the root that nobody has used yet."""
    return (tmp_path / "states" / str(number) for number in itertools.count())


def connect(directory: Path, synchronous: str = "FULL") -> apsw.Connection:
    connection = apsw.Connection(str(directory / DATABASE))
    connection.execute("pragma journal_mode=wal").fetchall()
    connection.execute(f"pragma synchronous={synchronous}")
    connection.execute("create table if not exists t (x integer primary key)")
    return connection


def insert(connection: apsw.Connection, value: int) -> None:
    connection.execute("insert into t values (?)", (value,))


def rows(directory: Path) -> set[int]:
    """What a fresh process would find: nothing when the database or its table was never durable."""
    connection = apsw.Connection(str(directory / DATABASE))
    try:
        if connection.execute("pragma integrity_check").fetchall() != [("ok",)]:
            raise apsw.CorruptError
        if not connection.execute("select 1 from sqlite_schema where name = 't'").fetchall():
            return set()
        return {cast("int", x) for (x,) in connection.execute("select x from t").fetchall()}
    finally:
        connection.close()


def broken_promises(root: Path, fresh: Iterator[Path], synchronous: str, commits: int = 8) -> list[str]:
    """Cut the power before every step of a run with checkpoints; say where an acknowledged row is missing."""
    acknowledged: set[int] = set()
    cuts: list[tuple[PowerCut, set[int]]] = []
    with FaultyDisk(root, syscalls=False) as disk:
        disk.on_step = lambda index, op, name: cuts.append((disk.snapshot(), set(acknowledged)))
        connection = connect(root, synchronous)
        connection.wal_autocheckpoint(5)
        for value in range(commits):
            insert(connection, value)
            acknowledged.add(value)
        connection.close()
        cuts.append((disk.snapshot(), set(acknowledged)))
    assert len(cuts) > 4 * commits
    broken = []
    for cut, promised in cuts:
        for state in cut.states(limit=12, seed=1):
            problem = problem_in(state.materialise(next(fresh)), promised, set(range(commits)))
            if problem:
                broken.append(f"{problem}: {state.describe()}")
    return broken


def problem_in(directory: Path, promised: set[int], possible: set[int]) -> str:
    try:
        found = rows(directory)
    except (apsw.CorruptError, apsw.NotADBError):
        return "damaged"
    return "" if promised <= found <= possible else "missing"


# --- power cuts under SQLite


def test_full_keeps_every_acknowledged_commit(root: Path, fresh: Iterator[Path]) -> None:
    """With synchronous=FULL every acknowledged commit is in every legal state after a cut before any step."""
    assert broken_promises(root, fresh, "FULL") == []


@pytest.mark.parametrize("synchronous", ["OFF", "NORMAL"])
def test_a_missing_fsync_is_caught(root: Path, fresh: Iterator[Path], synchronous: str) -> None:
    """The same check finds lost commits as soon as SQLite is set to sync less."""
    assert any(line.startswith("missing") for line in broken_promises(root, fresh, synchronous))


def test_an_unsynced_commit_has_both_outcomes(root: Path, fresh: Iterator[Path]) -> None:
    """A commit cut down just before its sync is lost in the first state and there in the second."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        insert(connection, 1)
        cuts: list[PowerCut] = []
        disk.on_step = lambda index, op, name: cuts.append(disk.snapshot()) if op == "sync" else None
        insert(connection, 2)
        disk.on_step = None
        connection.close()
    found = [rows(state.materialise(next(fresh))) for state in cuts[0].states(limit=2)]
    assert found == [{1}, {1, 2}]


def test_a_snapshot_does_not_change(root: Path, fresh: Iterator[Path]) -> None:
    """A snapshot stays what it was, whatever is written and synced afterwards."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        insert(connection, 1)
        cut = disk.snapshot()
        before = [dict(state.files) for state in cut.states(limit=5)]
        for value in range(2, 20):
            insert(connection, value)
        connection.close()
    assert [dict(state.files) for state in cut.states(limit=5)] == before
    assert rows(next(cut.states(limit=1)).materialise(next(fresh))) == {1}


def test_what_was_there_on_entry_is_durable(root: Path, fresh: Iterator[Path]) -> None:
    """A database written before the disk was entered is in every state."""
    root.mkdir()
    connection = connect(root)
    insert(connection, 1)
    connection.close()
    (root / f"{DATABASE}-shm").touch()  # as a process that died would have left it
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        insert(connection, 2)
        cut = disk.snapshot()
        connection.close()
    for state in cut.states(limit=10):
        assert f"{DATABASE}-shm" not in state.files
        assert rows(state.materialise(next(fresh))) == {1, 2}, state.describe()


def test_shared_memory_is_never_part_of_a_state(root: Path) -> None:
    """No state has a shm file, although the running database has one."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        assert (root / f"{DATABASE}-shm").exists()
        names = {name for state in disk.snapshot().states(limit=20) for name in state.files}
        connection.close()
    assert names == {DATABASE, f"{DATABASE}-wal"}


def test_a_deleted_wal_may_come_back_until_the_directory_is_synced(root: Path) -> None:
    """SQLite deletes the WAL without syncing the directory, so it may be found again, until somebody does."""
    with FaultyDisk(root) as disk:
        connect(root).close()
        unsynced = [f"{DATABASE}-wal" in state.files for state in disk.snapshot().states(limit=2)]
        holdfast_disk.sync_directory(root)
        synced = [f"{DATABASE}-wal" in state.files for state in disk.snapshot().states(limit=2)]
    assert (unsynced, synced) == ([True, False], [False])


def tree(root: Path) -> dict[str, bytes]:
    """What is really below the root, but for shared memory."""
    paths = (path for path in root.rglob("*") if path.is_file() and not path.name.endswith("-shm"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def everything(disk: FaultyDisk) -> dict[str, bytes]:
    """The state in which all that was done survived."""
    states = [dict(state.files) for state in disk.snapshot().states(limit=2)]
    return states[-1]


def possible(disk: FaultyDisk, name: str) -> set[bytes | None]:
    """What a file may hold after a cut right now; None stands for no file."""
    return {state.files.get(name) for state in disk.snapshot().states()}


@pytest.mark.parametrize("journal", ["wal", "delete", "truncate", "persist"])
def test_the_recording_follows_sqlite(root: Path, journal: str) -> None:
    """At every step, the state in which everything survived is what the files really hold."""
    steps: list[Op] = []

    def compare(index: int, op: Op, name: str) -> None:
        steps.append(op)
        if op != "read":
            cut = disk.snapshot()
            assert cut_whole(cut) == tree(root), (index, op, name)

    with FaultyDisk(root, syscalls=False) as disk:
        disk.on_step = compare
        connection = apsw.Connection(str(root / DATABASE))
        connection.execute(f"pragma journal_mode={journal}").fetchall()
        connection.execute("create table t (x)")
        connection.execute("insert into t values (zeroblob(50000))")
        connection.execute("delete from t")
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)").fetchall()
        connection.close()
        assert everything(disk) == tree(root)
    assert {"write", "sync", "truncate"} <= set(steps)


def cut_whole(cut: PowerCut) -> dict[str, bytes]:
    return dict(list(cut.states(limit=2))[-1].files)


def test_a_database_without_a_journal_is_durable_with_its_sync(root: Path) -> None:
    """The name of a file that SQLite synced survives, with no directory synced at all."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = apsw.Connection(str(root / DATABASE))
        connection.execute("pragma journal_mode=memory").fetchall()
        before = possible(disk, DATABASE)
        connection.execute("create table t (x)")
        after = possible(disk, DATABASE)
        connection.close()
    assert None in before
    assert after == {(root / DATABASE).read_bytes()}


def test_an_old_deletion_does_not_strike_a_new_file(root: Path) -> None:
    """A file made and synced under a deleted name is in every state, though the deletion was never synced."""
    with FaultyDisk(root) as disk:
        holdfast_disk.write_file(root / DATABASE, b"")
        holdfast_disk.syscalls.unlink(root / DATABASE)
        connection = apsw.Connection(str(root / DATABASE))
        connection.execute("pragma journal_mode=memory").fetchall()
        connection.execute("create table t (x)")
        found = possible(disk, DATABASE)
        connection.close()
    assert found == {(root / DATABASE).read_bytes()}


@pytest.mark.parametrize(("synchronous", "outcomes"), [("FULL", {True, False}), ("EXTRA", {False})])
def test_a_deletion_that_sqlite_syncs_is_durable(root: Path, synchronous: str, outcomes: set[bool]) -> None:
    """A journal deleted with synchronous=EXTRA stays deleted; with FULL it may come back."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = apsw.Connection(str(root / DATABASE))
        connection.execute(f"pragma synchronous={synchronous}")
        connection.execute("create table t (x)")
        found = {content is not None for content in possible(disk, f"{DATABASE}-journal")}
        connection.close()
    assert found == outcomes


# --- legal states of a cut, without SQLite


def one_file(*pending: Change, durable: bytes = b"") -> PowerCut:
    return PowerCut({"f": 0}, {0: durable}, pending)


def write(offset: int, data: bytes) -> WriteChange:
    return WriteChange(0, "f", offset, data)


def contents(cut: PowerCut, limit: int = 1000, seed: int = 0) -> set[bytes]:
    return {state.files["f"] for state in cut.states(limit, seed)}


def test_states_hold_every_prefix_and_every_tear() -> None:
    """All prefixes of the pending writes are produced, and all tears of each at a sector boundary."""
    first, second = b"a" * 2 * SECTOR, b"b" * 3 * SECTOR
    found = contents(one_file(write(0, first), write(len(first), second)))
    whole = first + second
    assert {whole[: sectors * SECTOR] for sectors in range(6)} <= found


def test_states_hold_every_prefix_of_many_writes() -> None:
    """However many writes were pending, each moment between two of them is among the states."""
    whole = b"".join(bytes([number + 1]) * SECTOR for number in range(40))
    cut = one_file(*(write(at, whole[at : at + SECTOR]) for at in range(0, len(whole), SECTOR)))
    assert {whole[: sectors * SECTOR] for sectors in range(41)} <= contents(cut)


def test_states_lose_writes_out_of_the_middle() -> None:
    """A later write may survive an earlier one elsewhere, and a sector may be missing inside a write."""
    found = contents(one_file(write(0, b"a" * SECTOR), write(SECTOR, b"b" * 3 * SECTOR)))
    assert bytes(SECTOR) + b"b" * 3 * SECTOR in found
    assert any(image[SECTOR:].startswith(b"b" * SECTOR + bytes(SECTOR) + b"b") for image in found)


def test_states_are_different_limited_and_repeatable() -> None:
    """No state comes twice, there are never more than the limit, and the seed decides which."""
    cut = one_file(*(write(number * SECTOR, bytes([number + 1]) * SECTOR) for number in range(12)))

    def drawn(seed: int, limit: int = 30) -> list[bytes]:
        return [state.files["f"] for state in cut.states(limit, seed)]

    assert len(drawn(1)) == len(set(drawn(1))) == 30
    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1)[:2] == [b"", b"".join(bytes([number + 1]) * SECTOR for number in range(12))]
    assert len(list(one_file(durable=b"x").states(30))) == 1


def test_a_small_limit_still_sees_every_kind() -> None:
    """Ten states of many writes hold tears and random choices, and prefixes of any length."""
    cut = one_file(*(write(number * 3 * SECTOR, bytes([number + 1]) * 3 * SECTOR) for number in range(50)))
    labels = "\n".join(state.label for state in cut.states(limit=10, seed=3))
    assert all(word in labels for word in ("nothing", "everything", "torn", "random"))
    lengths = re.findall("the first ([0-9]+) of 50 changes survived$", labels, re.MULTILINE)
    assert max(map(int, lengths)) > 25


writes = st.builds(write, st.integers(0, 2000), st.binary(min_size=1, max_size=1500))
truncates = st.builds(lambda size: TruncateChange(0, "f", size), st.integers(0, 3000))


@given(st.lists(writes, max_size=6), st.binary(max_size=2000), st.integers(0, 99))
def test_a_sector_never_holds_a_later_write_without_an_earlier_one(
    pending: list[WriteChange], durable: bytes, seed: int
) -> None:
    """Each sector of each state is a version of that sector which the program had written at some time."""
    image = bytearray(durable.ljust(8 * SECTOR, b"\0"))
    versions = [bytes(image)]
    for change in pending:
        image[change.offset : change.offset + len(change.data)] = change.data
        versions.append(bytes(image))
    for state in one_file(*pending, durable=durable).states(limit=40, seed=seed):
        found = state.files["f"].ljust(8 * SECTOR, b"\0")
        for start in range(0, 8 * SECTOR, SECTOR):
            assert any(found[start : start + SECTOR] == old[start : start + SECTOR] for old in versions)


@given(st.lists(writes | truncates, max_size=6), st.binary(max_size=2000))
def test_the_state_with_everything_is_what_the_program_saw(changes: list[Change], durable: bytes) -> None:
    """When everything survives, the file is exactly what a real one would hold after the same calls."""
    descriptor = os.memfd_create("reference")
    try:
        os.pwrite(descriptor, durable, 0)
        for change in changes:
            if isinstance(change, WriteChange):
                os.pwrite(descriptor, change.data, change.offset)
            elif isinstance(change, TruncateChange):
                os.ftruncate(descriptor, change.size)
        expected = os.pread(descriptor, 10_000, 0)
    finally:
        os.close(descriptor)
    first, *others = (state.files["f"] for state in one_file(*changes, durable=durable).states(limit=2))
    assert first == durable
    assert expected == durable or others == [expected]


def test_a_state_says_what_survived_and_what_was_lost() -> None:
    """The description names each change on its side, and the sectors of a torn one."""
    cut = PowerCut({}, {0: b""}, (LinkChange("f", 0), WriteChange(0, "f", 0, b"a" * 2 * SECTOR)))
    described = {state.label.split()[0]: state.describe() for state in cut.states(limit=2)}
    assert "survived: nothing; lost: create f, write f 0+1024" in described["nothing"]
    assert "survived: create f, write f 0+1024; lost: nothing" in described["everything"]
    assert any("write f 0+1024 (only sectors [0])" in state.describe() for state in cut.states(limit=9))


def test_a_state_refuses_a_directory_in_use(tmp_path: Path) -> None:
    """A state is never mixed with what was in the directory before."""
    (tmp_path / "left-over").touch()
    with pytest.raises(Invalid):
        next(one_file().states(1)).materialise(tmp_path)


# --- holdfast's own files, through the system calls


def careless(path: Path, content: bytes, *, sync_content: bool, sync_directory: bool) -> None:
    """Replace a small file, leaving out one of the two syncs it takes."""
    calls = holdfast_disk.syscalls
    descriptor = calls.open(path.with_suffix(".new"), os.O_WRONLY | os.O_CREAT, 0o600)
    calls.write(descriptor, content)
    if sync_content:
        calls.fsync(descriptor)
    calls.close(descriptor)
    calls.replace(path.with_suffix(".new"), path)
    if sync_directory:
        holdfast_disk.sync_directory(path.parent)


Found = set[bytes | None]


def replaced(root: Path, write_file: Callable[[Path, bytes], None]) -> tuple[Found, Found]:
    """What a file may hold after a cut at any step of replacing old by new, and after a cut at the end."""
    during: list[PowerCut] = []
    with FaultyDisk(root) as disk:
        holdfast_disk.write_file(root / "FORMAT", b"old")
        disk.on_step = lambda index, op, name: during.append(disk.snapshot())
        write_file(root / "FORMAT", b"new")
        after = disk.snapshot()
    return {state.files.get("FORMAT") for cut in during for state in cut.states()}, {
        state.files.get("FORMAT") for state in after.states()
    }


def test_write_file_leaves_the_old_or_the_new_one(root: Path) -> None:
    """A careful replacement is the old file or the new one at any cut, and the new one afterwards."""
    assert replaced(root, holdfast_disk.write_file) == ({b"old", b"new"}, {b"new"})


def test_a_rename_before_the_sync_is_caught(root: Path) -> None:
    """Renaming a file whose content was not synced can leave an empty file."""
    _, after = replaced(root, partial(careless, sync_content=False, sync_directory=True))
    assert after == {b"", b"new"}


def test_a_missing_directory_sync_is_caught(root: Path) -> None:
    """A rename that was not followed by a sync of the directory can be undone by a cut."""
    _, after = replaced(root, partial(careless, sync_content=True, sync_directory=False))
    assert after == {b"old", b"new"}


def test_a_lost_directory_takes_its_files_along(root: Path) -> None:
    """A file synced in a directory whose own name was not is lost with it, and kept once that is synced."""
    with FaultyDisk(root) as disk:
        holdfast_disk.syscalls.mkdir(root / "inner")
        holdfast_disk.write_file(root / "inner" / "f", b"x")
        unsynced = {state.files.get("inner/f") for state in disk.snapshot().states()}
        holdfast_disk.sync_directory(root)
        synced = {state.files.get("inner/f") for state in disk.snapshot().states()}
    assert (unsynced, synced) == ({None, b"x"}, {b"x"})


def test_the_recording_follows_the_system_calls(root: Path) -> None:
    """After every kind of call, the state in which everything survived is what the files really hold."""
    with FaultyDisk(root) as disk:
        calls = holdfast_disk.syscalls

        def put(name: str, flags: int, *data: bytes) -> None:
            descriptor = calls.open(root / name, os.O_RDWR | flags, 0o600)
            for piece in data:
                calls.write(descriptor, piece)
            calls.close(descriptor)
            assert everything(disk) == tree(root), (name, flags)

        put("a", os.O_CREAT, b"hello ", b"world")
        put("a", os.O_APPEND, b"!", b"?")
        put("a", 0, b"HE")
        put("b", os.O_CREAT, b"short")
        put("b", os.O_TRUNC, b"s")
        descriptor = calls.open(root / "b", os.O_RDWR)
        calls.pwrite(descriptor, b"far", 100)
        assert everything(disk) == tree(root)
        calls.ftruncate(descriptor, 50)
        assert everything(disk) == tree(root)
        calls.close(descriptor)
        calls.mkdir(root / "inner")
        calls.rename(root / "a", root / "inner" / "c")
        assert everything(disk) == tree(root)
        calls.rename(root / "inner", root / "outer")
        assert everything(disk) == tree(root)
        calls.unlink(root / "b")
        assert everything(disk) == tree(root) == {"outer/c": b"HEllo world!?"}


def test_truncating_on_open_may_or_may_not_survive(root: Path) -> None:
    """Opening an existing file with O_TRUNC is a change like any other, also to a file never seen before."""
    with FaultyDisk(root) as disk:
        (root / "f").write_bytes(b"old")
        holdfast_disk.syscalls.close(holdfast_disk.syscalls.open(root / "f", os.O_WRONLY | os.O_TRUNC))
        assert possible(disk, "f") == {b"old", b""}


def test_what_others_do_behind_its_back_is_taken_in(root: Path) -> None:
    """Files and directories that were made or removed past the disk do not confuse what it says."""
    with FaultyDisk(root) as disk:
        (root / "inner").mkdir()
        (root / "inner" / "seen").write_bytes(b"made elsewhere")
        holdfast_disk.syscalls.close(holdfast_disk.syscalls.open(root / "inner" / "seen", os.O_RDONLY))
        holdfast_disk.write_file(root / "inner" / "f", b"x")
        assert possible(disk, "inner/seen") == {b"made elsewhere"}
        assert possible(disk, "inner/f") == {b"x"}
        (root / "inner" / "f").unlink()
        descriptor = holdfast_disk.syscalls.open(root / "inner" / "f", os.O_WRONLY | os.O_CREAT)
        holdfast_disk.syscalls.fsync(descriptor)
        holdfast_disk.syscalls.close(descriptor)
        holdfast_disk.sync_directory(root / "inner")
        assert possible(disk, "inner/f") == {b""}


def test_every_system_call_can_fail(root: Path) -> None:
    """Failing any step of a careful replacement raises EIO, and leaves the old file or the new one."""
    holdfast_disk.make_directory(root)
    kept: set[bytes] = set()
    for nth in itertools.count(1):
        holdfast_disk.write_file(root / "FORMAT", b"old")
        with FaultyDisk(root, fail=Fault(nth, "eio")) as disk:
            try:
                holdfast_disk.write_file(root / "FORMAT", b"new")
            except OSError as error:
                raised = str(error)
            else:
                break
        assert f"injected eio at step {nth}" in raised
        kept.add((root / "FORMAT").read_bytes())
    assert [step.op for step in disk.log] == ["open", "write", "sync", "rename", "open", "sync"]
    assert kept == {b"old", b"new"}


def test_a_later_fsync_does_not_bring_lost_data_back(root: Path) -> None:
    """After a failed fsync the next one succeeds, and the data is gone from every state all the same."""
    calls_before = holdfast_disk.syscalls
    with FaultyDisk(root) as disk:
        holdfast_disk.write_file(root / "f", b"old!")
        descriptor = holdfast_disk.syscalls.open(root / "f", os.O_RDWR)
        holdfast_disk.syscalls.pwrite(descriptor, b"lost", 0)
        disk.arm(Fault(1, "fsync"))
        with pytest.raises(OSError, match="injected fsync"):
            holdfast_disk.syscalls.fsync(descriptor)
        holdfast_disk.syscalls.fsync(descriptor)
        holdfast_disk.syscalls.pwrite(descriptor, b"+", 4)
        holdfast_disk.syscalls.fsync(descriptor)
        holdfast_disk.syscalls.close(descriptor)
        states = [state.files["f"] for state in disk.snapshot().states()]
    assert (root / "f").read_bytes() == b"lost+"
    assert states == [b"old!+"]
    assert holdfast_disk.syscalls is calls_before


def test_a_short_write_leaves_half_and_reports_a_full_disk(root: Path) -> None:
    """Half of the buffer is in the file, and in the recording, when ENOSPC is raised."""
    with FaultyDisk(root, fail=Fault(1, "short_write")) as disk:
        with pytest.raises(OSError, match="No space left on device: injected short_write"):
            holdfast_disk.write_file(root / "f", b"12345678")
        assert (root / "f.tmp").read_bytes() == b"1234"
        assert {state.files.get("f.tmp") for state in disk.snapshot().states()} == {None, b"", b"1234"}


# --- faults under SQLite


def checkpointed(connection: apsw.Connection) -> None:
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()


def read_afresh(connection: apsw.Connection) -> None:
    other = apsw.Connection(connection.filename, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        other.execute("select * from t").fetchall()
    finally:
        other.close()


Action = Callable[[apsw.Connection], object]
CODES: list[tuple[Kind, Op, Action, type[apsw.Error], int]] = [
    ("eio", "write", lambda c: insert(c, 1), apsw.IOError, apsw.SQLITE_IOERR_WRITE),
    ("enospc", "write", lambda c: insert(c, 1), apsw.FullError, apsw.SQLITE_FULL),
    ("short_write", "write", lambda c: insert(c, 1), apsw.FullError, apsw.SQLITE_FULL),
    ("enospc", "write", checkpointed, apsw.FullError, apsw.SQLITE_FULL),
    ("fsync", "sync", lambda c: insert(c, 1), apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
    ("fsync", "sync", checkpointed, apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
    ("eio", "sync", lambda c: insert(c, 1), apsw.IOError, apsw.SQLITE_IOERR_FSYNC),
    ("eio", "truncate", checkpointed, apsw.IOError, apsw.SQLITE_IOERR_TRUNCATE),
    ("eio", "open", read_afresh, apsw.CantOpenError, apsw.SQLITE_CANTOPEN),
    ("eio", "read", read_afresh, apsw.IOError, apsw.SQLITE_IOERR_CORRUPTFS),
    ("enospc", "read", read_afresh, apsw.IOError, apsw.SQLITE_IOERR_READ),
    ("eio", "delete", lambda c: c.close(), apsw.IOError, apsw.SQLITE_IOERR_DELETE),
]


@pytest.mark.parametrize(("kind", "op", "action", "error", "code"), CODES)
def test_a_fault_has_the_code_of_the_real_one(
    root: Path, kind: Kind, op: Op, action: Action, error: type[apsw.Error], code: int
) -> None:
    """The connection raises the class and the extended code that the unix VFS has for such a failure."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        insert(connection, 0)
        disk.arm(Fault(1, kind, op=op))
        with pytest.raises(error, match=f"injected {kind} at step [0-9]+: {op} log.db") as raised:
            action(connection)
        assert vars(raised.value)["extendedresult"] == code
        disk.disarm()
        connection.close()
    assert disk.fired == 1
    assert 0 in rows(root)


def test_an_error_that_sqlite_would_swallow_is_raised_all_the_same(root: Path, fresh: Iterator[Path]) -> None:
    """A checkpoint that fails after its commit raises from the commit, which is durable: a limit of apsw."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        connection.wal_autocheckpoint(1)
        disk.on_step = lambda index, op, name: disk.arm(Fault(1, "fsync")) if name == DATABASE else None
        with pytest.raises(apsw.IOError, match=f"sync {DATABASE}\n"):
            insert(connection, 1)
        cut = disk.snapshot()
        disk.on_step = None
        disk.disarm()
        connection.close()
    assert {frozenset(rows(state.materialise(next(fresh)))) for state in cut.states()} == {frozenset({1})}


def test_a_failed_sync_loses_its_writes_only(root: Path, fresh: Iterator[Path]) -> None:
    """The commit whose sync failed is in no state, those before and after it are in all."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        insert(connection, 1)
        disk.arm(Fault(1, "fsync"))
        with pytest.raises(apsw.IOError):
            insert(connection, 2)
        lost = disk.snapshot()
        insert(connection, 3)
        kept = disk.snapshot()
        connection.close()
    assert {frozenset(rows(state.materialise(next(fresh)))) for state in lost.states()} == {frozenset({1})}
    assert {frozenset(rows(state.materialise(next(fresh)))) for state in kept.states()} == {frozenset({1, 3})}


def test_a_short_write_of_sqlite_leaves_half(root: Path) -> None:
    """SQLite's buffer is half in the file when it hears that the disk is full."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        before = (root / f"{DATABASE}-wal").stat().st_size
        disk.arm(Fault(1, "short_write"))
        with pytest.raises(apsw.FullError):
            insert(connection, 1)
        pending = [str(change) for change in disk.snapshot().pending]
        after = (root / f"{DATABASE}-wal").stat().st_size
        connection.close()
    assert after == before + 12  # the first thing written is a frame's header, of 24 bytes
    assert pending == [f"write {DATABASE}-wal {before}+12"]


def run(root: Path, acknowledged: set[int]) -> None:
    """A short life of a database; a connection that failed is dropped here, as by a process that died."""
    connection = connect(root)
    for value in range(3):
        insert(connection, value)
        acknowledged.add(value)
    checkpointed(connection)
    connection.close()


@pytest.mark.parametrize("kind", ["eio", "enospc", "short_write", "fsync"])
@pytest.mark.parametrize("sticky", [False, True])
def test_failing_each_step_in_turn_comes_to_an_end(tmp_path: Path, kind: Kind, sticky: bool) -> None:
    """Every step of a run can be failed in turn, and what was acknowledged is there afterwards."""
    for nth in itertools.count(1):
        root = tmp_path / str(nth)
        acknowledged: set[int] = set()
        disk = FaultyDisk(root, fail=Fault(nth, kind, sticky), record=False, syscalls=False)
        with disk, contextlib.suppress(apsw.Error):
            run(root, acknowledged)
        if not disk.fired:
            break
        assert acknowledged <= rows(root), disk.log[-5:]
    fallible = [step for step in disk.log if Fault(1, kind).matches(step.op)]
    assert nth == len(fallible) + 1 > 8
    assert acknowledged == {0, 1, 2}


def test_a_fault_fires_once_unless_it_is_sticky(root: Path) -> None:
    """One commit fails and the next succeeds; with sticky they all fail until the disk is disarmed."""

    def outcomes(disk: FaultyDisk, connection: apsw.Connection, fault: Fault) -> list[bool]:
        disk.arm(fault)
        done = []
        for value in itertools.islice(numbers, 3):
            try:
                insert(connection, value)
                done.append(True)
            except apsw.FullError:
                done.append(False)
        disk.disarm()
        return done

    numbers = itertools.count()
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        once = outcomes(disk, connection, Fault(1, "enospc", op="write"))
        for_good = outcomes(disk, connection, Fault(1, "enospc", op="write", sticky=True))
        insert(connection, 100)
        connection.close()
    assert (once, for_good) == ([False, True, True], [False, False, False])
    assert rows(root) == {1, 2, 100}


def test_a_fault_counts_only_what_it_matches_from_when_it_was_armed(root: Path) -> None:
    """The second sync after arming fails, however many steps and syncs there were before."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        disk.arm(Fault(9, "eio", op="sync"))
        insert(connection, 0)
        armed_at = disk.steps
        disk.arm(Fault(2, "eio", op="sync"))
        insert(connection, 1)
        with pytest.raises(apsw.IOError):
            insert(connection, 2)
        since = [step.op for step in disk.log[armed_at:]]
        connection.close()
    assert since.count("sync") == 2
    assert since[-1] == "sync"


def test_the_hook_comes_before_the_step_and_may_fail_it(root: Path) -> None:
    """The hook sees each step by number before it is done, and a fault armed there meets that very step."""
    seen: list[tuple[int, str, str]] = []
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)

        def hook(index: int, op: Op, name: str) -> None:
            seen.append((index, op, name))
            if op == "sync":
                disk.arm(Fault(1, "fsync"))

        disk.on_step = hook
        with pytest.raises(apsw.IOError, match=f"at step {disk.steps + 3}: sync"):
            insert(connection, 1)
        assert seen == disk.log[-3:]
        disk.on_step = None
        connection.close()


@pytest.mark.parametrize(
    ("nth", "kind", "op"), [(0, "eio", "any"), (1, "fsync", "write"), (1, "short_write", "sync"), (1, "fire", "any")]
)
def test_a_fault_that_could_never_fire_is_refused(nth: int, kind: Kind, op: Op) -> None:
    """A fault that matches no step is an error in the test that asked for it."""
    with pytest.raises(Invalid):
        Fault(nth, kind, op=op)


# --- the border and the way out


def test_files_outside_the_root_are_untouched(tmp_path: Path, root: Path) -> None:
    """A disk on which everything fails neither fails nor counts nor records what happens elsewhere."""
    elsewhere = tmp_path / "root-but-not-quite"
    elsewhere.mkdir()
    with FaultyDisk(root, fail=Fault(1, "eio", sticky=True)) as disk:
        connection = connect(elsewhere)
        insert(connection, 1)
        connection.close()
        holdfast_disk.write_file(elsewhere / "FORMAT", b"x")
        assert (disk.steps, disk.fired, disk.log) == (0, 0, [])
        assert [dict(state.files) for state in disk.snapshot().states()] == [{}]
        with pytest.raises(apsw.CantOpenError):
            connect(root)
    assert rows(elsewhere) == {1}


def test_everything_is_put_back_after_an_exception(root: Path) -> None:
    """The default VFS, the system calls and the hook for unraisable errors are put back on any way out."""
    before = apsw.vfs_names(), holdfast_disk.syscalls, sys.unraisablehook

    def leave_badly() -> None:
        with FaultyDisk(root):
            assert apsw.vfs_names()[0] != before[0][0]
            assert holdfast_disk.syscalls is not before[1]
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave_badly()
    assert (apsw.vfs_names(), holdfast_disk.syscalls, sys.unraisablehook) == before


def test_everything_is_put_back_when_entering_fails(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that could not be entered whole leaves nothing behind."""
    before = apsw.vfs_names(), sys.unraisablehook
    monkeypatch.setitem(sys.modules, "holdfast.disk", None)
    with pytest.raises(ImportError):
        FaultyDisk(root).__enter__()
    assert (apsw.vfs_names(), sys.unraisablehook) == before


def test_a_connection_outlives_the_disk(root: Path) -> None:
    """A connection left open still works after the disk is gone, and a planned fault no longer meets it."""
    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        disk.arm(Fault(1, "eio", sticky=True))
    insert(connection, 1)
    connection.close()
    assert rows(root) == {1}


def test_a_reader_works_while_the_writer_writes(root: Path) -> None:
    """A read-only connection on another thread sees every commit, in order, through the shared memory."""
    seen: list[int] = []
    written, read = threading.Semaphore(0), threading.Semaphore(0)

    def follow() -> None:
        reader = apsw.Connection(str(root / DATABASE), flags=apsw.SQLITE_OPEN_READONLY)
        for _ in range(5):
            written.acquire()
            seen.append(reader.execute("select count(*) from t").get)
            read.release()
        reader.close()

    with FaultyDisk(root, syscalls=False):
        connection = connect(root)
        thread = threading.Thread(target=follow)
        thread.start()
        for value in range(5):
            insert(connection, value)
            written.release()
            assert read.acquire(timeout=30)
        thread.join()
        connection.close()
    assert seen == [1, 2, 3, 4, 5]


def test_an_error_that_nobody_can_hear_of_stays_quiet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten connection that fails while it is collected prints nothing; a real error still does."""
    printed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: printed.append(event.exc_type))

    class Noisy:
        def __del__(self) -> None:
            raise ZeroDivisionError

    with FaultyDisk(root, syscalls=False) as disk:
        connection = connect(root)
        disk.arm(Fault(1, "fsync", sticky=True))
        del connection
        gc.collect()
        assert disk.fired > 0
        Noisy()
    assert printed == [ZeroDivisionError]


def test_a_disk_that_does_not_record_says_so(root: Path) -> None:
    """A snapshot of nothing is refused, whether the disk records nothing or was not entered."""
    with pytest.raises(Invalid):
        FaultyDisk(root).snapshot()
    with FaultyDisk(root, record=False) as disk, pytest.raises(Invalid):
        disk.snapshot()
