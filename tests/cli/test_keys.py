"""`holdfast keys`: keyring files are made, rotated and listed, and no key is ever seen."""

from __future__ import annotations

import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from holdfast.cli.verbs.keys import _made
from tests.cli.conftest import Run, objects

pytestmark = pytest.mark.disk


def secrets(path: Path) -> list[str]:
    """The keys in a file, as they stand there."""
    return [line.partition(":")[2] for line in path.read_text().split()]


def test_a_new_keyring_opens_a_log(run: Run, tmp_path: Path) -> None:
    """`keys new` makes a file of mode 0600 that the library and the other verbs take; the key is not shown."""
    made = run("keys", "new", "keyring", "--id", "2026-11", "--json")
    assert (made.exit_code, objects(made.stdout)[0]["id"]) == (0, "2026-11")
    assert stat.S_IMODE((tmp_path / "keyring").stat().st_mode) == 0o600
    (secret,) = secrets(tmp_path / "keyring")
    assert len(base64.b64decode(secret)) == 32
    assert secret not in made.output
    assert [path.name for path in tmp_path.iterdir()] == ["keyring"]
    assert run("append", "log", "orders", "x", "--keyring", "file:keyring").exit_code == 0
    assert Keyring.from_file(tmp_path / "keyring").ids == ("2026-11",)


@pytest.mark.parametrize("taken", ["file", "directory", "link", "dangling"])
def test_nothing_is_overwritten(run: Run, tmp_path: Path, taken: str) -> None:
    """Whatever has the name stays as it is."""
    place = tmp_path / "keyring"
    if taken == "file":
        place.write_text("mine")
    elif taken == "directory":
        place.mkdir()
    else:
        place.symlink_to("/dev/null" if taken == "link" else tmp_path / "nowhere")
    before = os.lstat(place)
    result = run("keys", "new", place)
    assert (result.exit_code, "never overwritten" in result.stderr) == (1, True)
    assert os.lstat(place).st_ino == before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["keyring"]


def test_a_directory_that_is_not_there(run: Run) -> None:
    """A place that cannot be written to is reported in our words."""
    result = run("keys", "new", "nowhere/keyring")
    assert (result.exit_code, result.stderr.startswith("error: cannot write the keyring file")) == (1, True)


def test_rotation_keeps_the_older_keys(run: Run, tmp_path: Path) -> None:
    """`keys rotate` puts a new key in front; what the older one encrypted is still read."""
    run("keys", "new", "keyring", "--id", "old")
    run("append", "log", "orders", "one", "--keyring", "file:keyring")
    rotated = run("keys", "rotate", "keyring", "--id", "new")
    assert rotated.exit_code == 0
    assert not any(secret in rotated.output for secret in secrets(tmp_path / "keyring"))
    assert stat.S_IMODE((tmp_path / "keyring").stat().st_mode) == 0o600
    run("append", "log", "orders", "two", "--keyring", "file:keyring")
    run("seal", "log", "--keyring", "file:keyring")
    run("append", "log", "orders", "three", "--keyring", "file:keyring")
    assert run("read", "log", "orders", "--raw", "--keyring", "file:keyring").stdout == "one\ntwo\nthree\n"
    newest, oldest = objects(run("keys", "list", "keyring", "--log", "log", "--json").stdout)
    assert (newest["id"], newest["current"], newest["sealing"], newest["segments"]) == ("new", True, True, 1)
    assert (oldest["id"], oldest["current"], oldest["sealing"]) == ("old", False, False)
    assert newest["entries"] == 1


def test_a_name_that_is_in_use(run: Run) -> None:
    """Two keys of one name would shadow each other: refused."""
    assert run("keys", "new", "keyring", "--id", "old").exit_code == 0
    before = Path("keyring").read_bytes()
    result = run("keys", "rotate", "keyring", "--id", "old")
    assert (result.exit_code, "is in use" in result.stderr) == (1, True)
    assert Path("keyring").read_bytes() == before
    assert run("keys", "new", "other", "--id", "no/name").exit_code == 1
    assert not Path("other").exists()


def test_rotating_twice_on_a_day(run: Run) -> None:
    """Without a name of one's own each key gets one that is free."""
    assert run("keys", "new", "keyring").exit_code == 0
    for _ in range(2):
        assert run("keys", "rotate", "keyring").exit_code == 0
    day = Keyring.from_file("keyring").ids[-1]
    assert Keyring.from_file("keyring").ids == (f"{day}-3", f"{day}-2", day)


def test_rotating_at_once_loses_no_key(run: Run) -> None:
    """A log may use a new key from the moment when it is there."""
    assert run("keys", "new", "keyring", "--id", "first").exit_code == 0
    names = [f"k{n}" for n in range(8)]
    with ThreadPoolExecutor(8) as threads:  # each with a descriptor of its own, as processes have
        list(threads.map(lambda name: _made(Path("keyring").absolute(), name, is_new=False), names))
    assert sorted(Keyring.from_file("keyring").ids) == ["first", *names]


def test_a_link_is_not_rotated(run: Run, tmp_path: Path) -> None:
    """A secret that is mounted under a link would stay as it is, and the link be lost."""
    run("keys", "new", "keyring")
    (tmp_path / "link").symlink_to("keyring")
    assert run("keys", "rotate", "link", "--id", "x").exit_code == 1
    assert (tmp_path / "link").is_symlink()


def test_keys_that_are_missing_are_listed(run: Run, secret_log: Path) -> None:
    """A keyring that lacks a key of the log is refused; nothing of the log is opened for it."""
    run("keys", "new", "wrong", "--id", "wrong")
    result = run("keys", "list", "wrong", "--log", secret_log, "--json")
    first, lacking = objects(result.stdout)
    assert (first["known"], first["sealing"], lacking["known"], lacking["sealing"]) == (True, False, False, True)
    assert "note: the log uses keys that the keyring does not have" in result.stderr


def test_names_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring in a variable is listed, and cannot be written."""
    Keyring.generate("k").save("keyring")
    monkeypatch.setenv("APP_KEYS", Path("keyring").read_text())
    assert run("keys", "list", "env:APP_KEYS").stdout.split()[-3:] == ["k", "yes", "yes"]
    assert run("keys", "rotate", "env:APP_KEYS").exit_code == 2


def test_a_log_without_keys(run: Run, log: Path) -> None:
    """A plain log uses none."""
    run("keys", "new", "keyring")
    result = run("keys", "list", "keyring", "--log", log)
    assert (result.exit_code, "uses no key" in result.stderr) == (0, True)


def test_the_library_does_not_overwrite_either(tmp_path: Path) -> None:
    """`save(replace=False)` refuses what is there, with one of our errors."""
    Keyring.generate().save(tmp_path / "k")
    with pytest.raises(holdfast.Invalid, match="a file is already there"):
        Keyring.generate().save(tmp_path / "k", replace=False)
