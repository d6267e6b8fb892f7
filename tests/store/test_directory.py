"""A directory as a store: durable when `create` returns, whole whenever it is there, and honest about its disk."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast import disk
from holdfast.clock import SystemClock
from holdfast.errors import NotFound
from holdfast.store.directory import DirectoryStore
from holdfast.store.port import AlreadyExists, Body, Store, StoreRefused, StoreUnavailable
from holdfast.testing import Fault, FaultyDisk, ManualClock
from holdfast.testing.fault import Kind
from tests.harness.cuts import Cut, examine, record
from tests.harness.faults import KINDS, fail_at

pytestmark = pytest.mark.store

OBJECTS = {
    "log.json": b"{}\n",
    "tail/1/1-1.arrow": b"a" * 3_000,
    "tail/1/2-9.arrow": b"b" * 700,
    "topics/orders/0/_manifest/0.json": b"manifest",
    "topics/orders/0/segments/0.parquet": b"PAR1" * 1_000,
}


def store_in(root: Path) -> DirectoryStore:
    return DirectoryStore(root, SystemClock())


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return store_in(tmp_path / "store")


def temporaries(root: Path) -> list[Path]:
    return [path for path in root.rglob(".*") if path.is_file()]


# -- power cuts -------------------------------------------------------------------------------------------


def check(root: Path, promised: dict[str, bytes]) -> None:
    """Everything promised is there; whatever is there is whole; what is not can be created."""
    store = store_in(root)
    listed = [info.key for info in store.list("")]
    assert set(promised) <= set(listed)
    assert set(listed) <= set(OBJECTS)
    for key, data in OBJECTS.items():
        if key in listed:
            assert store.get(key) == data
        else:
            store.create(key, Body.of(data))
            assert store.get(key) == data


def life(root: Path) -> list[Cut[dict[str, bytes]]]:
    """Objects are created, one after the other."""
    promised: dict[str, bytes] = {}

    def create_all(faulty: FaultyDisk) -> None:
        store = store_in(root / "store")
        for key, data in OBJECTS.items():
            store.create(key, Body.of(data))
            promised[key] = data

    return record(root, create_all, lambda: dict(promised))


def look(copy: Path, promised: dict[str, bytes]) -> None:
    check(copy / "store", promised)


def test_what_was_created_survives_every_cut_and_the_rest_is_absent_or_whole(tmp_path: Path) -> None:
    cuts = life(tmp_path / "disk")
    assert len(cuts) > 50
    assert examine(cuts, look, tmp_path / "states", 12) > 100


def without_directory_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk, "sync_directory", lambda path: None)


def without_file_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(disk.NewFile, "finish", disk.NewFile.close)


@pytest.mark.parametrize("planted", [without_directory_sync, without_file_sync])
def test_these_cuts_would_notice_a_missing_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: Callable[[pytest.MonkeyPatch], None]
) -> None:
    with monkeypatch.context() as patch:
        planted(patch)
        cuts = life(tmp_path / "disk")
    with pytest.raises(AssertionError, match="cut before"):
        examine(cuts, look, tmp_path / "states", 12)


@pytest.mark.parametrize("look", ["list", "get", "head", "get_range", "create"])
def test_what_a_dead_writer_left_is_durable_once_it_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """The writer died between the name and its sync; who finds the object may count on it after a cut as well."""

    def die(path: Path) -> NoReturn:
        raise KeyboardInterrupt

    with FaultyDisk(tmp_path / "disk") as faulty:
        root = faulty.root / "store"
        store_in(root).create("a/0", Body.of(b"earlier"))
        writer = store_in(root)
        writer.create("a/1", Body.of(b"earlier"))
        with monkeypatch.context() as patch:
            patch.setattr(disk, "sync_directory", die)
            with pytest.raises(KeyboardInterrupt):
                writer.create("a/2", Body.of(b"content"))
        assert any("store/a/2" not in state.files for state in faulty.snapshot().states(limit=20))
        reader = store_in(root)
        if look == "create":
            with pytest.raises(AlreadyExists):
                reader.create("a/2", Body.of(b"content"))
        else:
            found = {
                "list": lambda: [info.key for info in reader.list("a/")][-1] == "a/2",
                "get": lambda: reader.get("a/2") == b"content",
                "head": lambda: reader.head("a/2") is not None,
                "get_range": lambda: reader.get_range("a/2", 0, 7) == b"content",
            }[look]()
            assert found
        for state in faulty.snapshot().states(limit=20):
            assert state.files["store/a/2"] == b"content", state.describe()


def test_deletions_survive_a_cut(tmp_path: Path) -> None:
    with FaultyDisk(tmp_path / "disk") as faulty:
        store = store_in(faulty.root / "store")
        for key in ("a/1", "a/2", "b/1"):
            store.create(key, Body.of(b"x"))
        store.delete(["a/1", "b/1"])
        for state in faulty.snapshot().states(limit=20):
            named = [name for name in state.files if not name.rpartition("/")[2].startswith(".")]
            assert named == ["store/a/2"], state.describe()


# -- failing disks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_whichever_step_fails_create_raises_and_works_again(tmp_path: Path, kind: Kind) -> None:
    """Afterwards the object is absent or whole; and who then creates it, or finds it taken, may count on it."""

    def create(root: Path, faulty: FaultyDisk) -> Store:
        store = store_in(root / "store")
        try:
            store.create("a/b/1", Body.of(b"content"))
        except StoreUnavailable as error:
            assert error.cause == "disk"
        return store

    fired = 0
    for failed in fail_at(tmp_path, kind, itertools.count(1), create):
        fired, store = fired + 1, failed.outcome
        try:
            store.create("a/b/1", Body.of(b"content"))
        except AlreadyExists:
            pass
        assert store.get("a/b/1") == b"content"
        for state in failed.disk.snapshot().states(limit=20):
            assert state.files["store/a/b/1"] == b"content", (failed.disk.failed, state.describe())
    assert fired >= (2 if kind == "fsync" else 1)


def test_a_failed_sync_of_the_content_leaves_no_object(tmp_path: Path) -> None:
    with FaultyDisk(tmp_path / "disk") as faulty:
        store = store_in(faulty.root / "store")
        store.create("a/0", Body.of(b"x"))
        faulty.arm(Fault(1, "fsync"))
        with pytest.raises(StoreUnavailable):
            store.create("a/1", Body.of(b"content"))
        assert faulty.failed[0].name.endswith(".tmp")
        assert store.head("a/1") is None
        assert temporaries(faulty.root) == []


def test_a_failed_sync_of_the_name_takes_the_name_back(tmp_path: Path) -> None:
    """Left there, the next create would find it taken, the bytes equal, and count on a name that may be gone."""
    with FaultyDisk(tmp_path / "disk") as faulty:
        store = store_in(faulty.root / "store")
        store.create("a/0", Body.of(b"x"))
        faulty.arm(Fault(2, "fsync"))
        with pytest.raises(StoreUnavailable):
            store.create("a/1", Body.of(b"content"))
        assert faulty.failed[0].name == "store/a"
        assert store.head("a/1") is None
        store.create("a/1", Body.of(b"content"))


def refuse(number: int) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "kind", "cause"),
    [
        (errno.EACCES, StoreRefused, "forbidden"),
        (errno.EROFS, StoreRefused, "forbidden"),
        (errno.EPERM, StoreRefused, "unsupported"),
        (errno.EOPNOTSUPP, StoreRefused, "unsupported"),
        (errno.ENOSPC, StoreUnavailable, "disk"),
        (errno.EIO, StoreUnavailable, "disk"),
    ],
)
def test_errors_of_the_disk_are_reported_by_what_can_be_done(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreRefused], cause: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse(number))
        with pytest.raises(kind) as caught:
            store.create("a/1", Body.of(b"x"))
    assert caught.value.cause == cause
    assert caught.value.hint
    store.create("a/1", Body.of(b"x"))


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    store = store_in(tmp_path / "store")
    with pytest.raises(StoreRefused):
        store.create("a", Body.of(b"x"))
    assert store.head("a") is None
    assert list(store.list("")) == []


def test_a_folder_that_somebody_removed_is_made_again(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/1", Body.of(b"x"))
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(StoreUnavailable):
        store.create("a/2", Body.of(b"x"))
    store.create("a/2", Body.of(b"x"))
    assert store.get("a/2") == b"x"


# -- files ------------------------------------------------------------------------------------------------


def test_an_object_shares_nothing_with_the_file_it_came_from(store: DirectoryStore, tmp_path: Path) -> None:
    """Retention may cut the log's own file to nothing; a second name for it would be cut as well."""
    path = tmp_path / "segment"
    path.write_bytes(b"content")
    store.create("a/1", Body.file(path, 7, sha256(b"content").digest()))
    disk.empty(path)
    assert store.get("a/1") == b"content"


def test_no_temporary_is_left_or_listed(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/1", Body.of(b"x"))
    with pytest.raises(AlreadyExists):
        store.create("a/1", Body.of(b"y"))
    with pytest.raises(StoreUnavailable):
        store.create("a/2", Body.file(tmp_path / "gone", 1, bytes(32)))
    assert temporaries(tmp_path) == []
    (tmp_path / "store/a/.holdfast-00.tmp").write_bytes(b"being written")
    assert [info.key for info in store.list("")] == ["a/1"]


def test_temporaries_of_the_dead_are_removed_after_a_day(tmp_path: Path) -> None:
    clock = ManualClock(now_us=time.time_ns() // 1000)
    DirectoryStore(tmp_path, clock).create("a/1", Body.of(b"x"))
    old, young, foreign = (tmp_path / "a" / name for name in (".holdfast-00.tmp", ".holdfast-01.tmp", ".foreign.tmp"))
    for path in (old, young, foreign):
        path.write_bytes(b"")
    for path in (old, foreign):
        os.utime(path, ns=(0, (clock.now_us() - 90_000 * 10**6) * 1000))
    list(DirectoryStore(tmp_path, clock).list(""))
    assert old.exists()
    DirectoryStore(tmp_path, clock).create("a/2", Body.of(b"x"))
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)


def test_keys_are_ordered_as_s3_orders_them(store: DirectoryStore) -> None:
    """By the bytes of the whole key, in which `-` and `.` come before `/`."""
    made = ["a-1/x", "a.1/x", "a/x", "a0/x", "a/b/c", "a/b-c", "ä/x", "z", "a-1/y", "a/b.c/d"]
    for key in made:
        store.create(key, Body.of(b""))
    ordered = sorted(made, key=str.encode)
    assert [info.key for info in store.list("")] == ordered
    for after in made:
        assert [info.key for info in store.list("", after=after)] == ordered[ordered.index(after) + 1 :]


def test_a_listing_reads_only_the_folders_it_needs(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for epoch in range(5):
        store.create(f"tail/{epoch}/1", Body.of(b""))
    read: list[str] = []
    scandir = os.scandir

    def watched(path: Path) -> object:
        read.append(path.name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    listing = store.list("tail/", after="tail/3/0")
    assert read == []
    assert [info.key for info in listing] == ["tail/3/1", "tail/4/1"]
    assert read == ["tail", "3", "4"]


def test_twenty_thousand_names_are_read_once_for_a_listing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store.create("m/0", Body.of(b""))
    for number in range(20_000):
        os.close(os.open(tmp_path / f"store/m/{number:020d}.json", os.O_CREAT | os.O_WRONLY))
    read: list[str] = []
    scandir = os.scandir

    def watched(path: Path) -> object:
        read.append(path.name)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", watched)
    assert sum(1 for _ in store.list("m/")) == 20_001
    assert len(list(store.list("m/", after=f"m/{19_990:020d}.json"))) == 9
    assert read == ["m", "m"]


def test_objects_that_vanish_while_they_are_listed_are_left_out(store: DirectoryStore) -> None:
    for number in range(3):
        store.create(f"a/{number}", Body.of(b""))
    listing = store.list("a/")
    assert next(listing).key == "a/0"
    store.delete(["a/1"])
    assert [info.key for info in listing] == ["a/2"]


def test_foreign_names_are_not_listed(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/1", Body.of(b"x"))
    (tmp_path / "store/a/.DS_Store").write_bytes(b"")
    (tmp_path / "store/a/link").symlink_to(tmp_path)
    with open(os.fsencode(tmp_path / "store/a") + b"/\xff", "wb"):
        pass
    assert [info.key for info in store.list("")] == ["a/1"]


def test_objects_can_be_read_by_their_owner_only(store: DirectoryStore, tmp_path: Path) -> None:
    store.create("a/1", Body.of(b"x"))
    assert (tmp_path / "store/a/1").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "store/a").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_not_there_is_an_empty_store(tmp_path: Path) -> None:
    store = store_in(tmp_path / "not" / "yet")
    assert list(store.list("")) == []
    assert store.head("a") is None
    with pytest.raises(NotFound):
        store.get("a")
    store.delete(["a"])
    assert not (tmp_path / "not").exists()
