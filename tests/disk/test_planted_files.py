"""Files that somebody planted where a key or a log is about to be written, or a keyring to be read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid, Keyring, Settings, Unavailable

pytestmark = pytest.mark.disk

SETTINGS = Settings.from_mapping({"segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}})


def test_a_planted_temporary_file_gets_no_key(tmp_path: Path) -> None:
    """Whoever prepared the temporary file, readable for himself and held open, sees nothing; the keyring is 0600."""
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
    for name in ("ring.tmp", "ring"):
        (tmp_path / name).symlink_to(victim)
    Keyring.generate().save(tmp_path / "ring")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "ring").is_symlink()
    assert Keyring.from_file(tmp_path / "ring").current == "k1"


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
