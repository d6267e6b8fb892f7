"""Files that somebody planted where a key or a log is about to be written, or a keyring to be read."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Corrupt, Invalid, Keyring, Settings, Unavailable

pytestmark = pytest.mark.disk

SETTINGS = Settings.from_mapping({"segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}})


def test_a_planted_temporary_file_gets_no_key(tmp_path: Path) -> None:
    """A user who prepared the temporary file, readable for himself and held open, sees nothing; the keyring is 0600."""
    planted = tmp_path / "ring.tmp"
    planted.touch(mode=0o666)
    planted.chmod(0o666)
    with planted.open("rb") as held:
        Keyring.generate("k1").save(tmp_path / "ring")
        assert held.read() == b""
    assert stat.S_IMODE((tmp_path / "ring").stat().st_mode) == 0o600
    assert Keyring.from_file(tmp_path / "ring").current == "k1"


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    """A temporary name that points elsewhere, and a keyring that does: what they point to stays as it was."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in ("ring.tmp", "link"):
        (tmp_path / name).symlink_to(victim)
    Keyring.generate().save(tmp_path / "ring")
    assert Keyring.from_file(tmp_path / "ring").current == "k1"
    with pytest.raises(Invalid, match="no regular file"):
        Keyring.generate().save(tmp_path / "link")
    assert victim.read_text() == "mine"


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    """A keyring that cannot get its name leaves no copy of its keys under another."""
    (tmp_path / "ring").mkdir()
    with pytest.raises(Unavailable, match="directory"):
        Keyring.generate().save(tmp_path / "ring")
    assert os.listdir(tmp_path) == ["ring"]


def test_a_log_is_not_made_through_planted_links(tmp_path: Path) -> None:
    """Links in the place of a new log's own files: what they point to stays as it was."""
    path, victim = tmp_path / "log", tmp_path / "victim"
    path.mkdir()
    victim.write_text("mine")
    (path / "FORMAT.tmp").symlink_to(victim)
    with holdfast.open(path, settings=SETTINGS) as log:
        log.topic("t").append(b"x")
    assert victim.read_text() == "mine"
    assert not (path / "FORMAT").is_symlink()


def _unreadable(folder: Path) -> Iterator[Path]:
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "zero").symlink_to("/dev/zero")
    with (folder / "huge").open("wb") as file:
        file.truncate(2**40)
    yield from (folder / name for name in ("fifo", "folder", "zero", "huge"))


@pytest.mark.timeout(20)
def test_what_is_no_keyring_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe nobody writes to, a device without end, a terabyte and a directory are Invalid; nobody waits or swells."""
    for path in _unreadable(tmp_path):
        with pytest.raises(Invalid, match="cannot read the keyring file"):
            Keyring.from_file(path)


@pytest.mark.parametrize("name", ["segments", "groups", "quarantine", "segments/topics/t"])
def test_a_folder_that_is_a_link_is_not_written_through(tmp_path: Path, name: str) -> None:
    """Nothing of a log comes into other people's folders, and nothing is taken away there."""
    log, victim = tmp_path / "log", tmp_path / "victim"
    holdfast.open(log, settings=SETTINGS).close()
    (victim / "0" / "segments").mkdir(parents=True)
    mine = victim / "0" / "segments" / f"{0:020d}-1.parquet.tmp"
    mine.write_text("mine")
    place = log / name
    if place.exists():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim)
    before = sorted(victim.rglob("*"))
    with pytest.raises((Corrupt, Unavailable)):
        opened = holdfast.open(log, settings=SETTINGS)
        try:
            opened.topic("t").append(b"x")
            opened.seal("t", timeout=0.5)
        finally:
            opened.close()
    assert sorted(victim.rglob("*")) == before
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["LOCK", "durable.db", "durable.db-wal", "durable.db-shm"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_hard_link_to_another_file_is_not_written_through(tmp_path: Path, name: str, is_new: bool) -> None:
    """A lock is emptied and a database written to: so neither may be a name of somebody else's file."""
    log, victim = tmp_path / "log", tmp_path / "victim"
    log.mkdir()
    victim.write_bytes(b"" if is_new and name == "durable.db" else b"mine")
    if not is_new:
        holdfast.open(log, settings=SETTINGS).close()
        (log / name).unlink(missing_ok=True)
    (log / name).hardlink_to(victim)
    before = victim.read_bytes()
    with pytest.raises((Corrupt, Unavailable), match="hard link"):
        holdfast.open(log, settings=SETTINGS)
    assert victim.read_bytes() == before


@pytest.mark.timeout(20)
@pytest.mark.parametrize("odd", ["device", "pipe", "link", "huge"])
def test_a_document_that_is_no_file_is_not_read(tmp_path: Path, odd: str) -> None:
    """The directory's own documents are read as all others are: nothing is followed, nothing waits, nothing swells."""
    path, victim = tmp_path / "log", tmp_path / "victim"
    with holdfast.open(path, settings=SETTINGS) as log:
        log.topic("t").append(b"x")
        log.seal()
    for place in (path / "segments/log.json", next((path / "segments").glob("topics/t/_topic/*.json"))):
        victim.write_bytes(place.read_bytes())
        place.unlink()
        if odd == "pipe":
            os.mkfifo(place)
        elif odd == "huge":
            with place.open("wb") as stream:
                stream.truncate(2**40)
        else:
            place.symlink_to("/dev/zero" if odd == "device" else victim)
        before = victim.read_bytes()
        with holdfast.open(path, settings=SETTINGS) as log:
            log.topic("t").append(b"y")
            log.seal()
        assert victim.read_bytes() == before
    first = path / "segments/log.json"
    assert first.is_file()
    assert not first.is_symlink()
