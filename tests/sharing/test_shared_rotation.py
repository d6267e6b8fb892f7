"""Another key for a log that many processes use: asked for by any of them, known to all before it is written under."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid, Keyring, Log, Unavailable
from holdfast.sharing import key_rotation
from tests.executions.waiting_room import wait_until
from tests.sharing.owner import SETTINGS
from tests.sharing.shared_logs import OwnerProcess

pytestmark = pytest.mark.crash


@contextmanager
def encrypted(directory: Path, keyring: Keyring) -> Iterator[tuple[Log, OwnerProcess]]:
    """A member of an encrypted log, and the process that owns it."""
    file = directory.parent / "keyring"
    keyring.save(file)
    owner = OwnerProcess(directory, keyring=file)
    try:
        with open_with(directory, keyring) as log:
            assert not log.is_owner
            yield log, owner
    finally:
        owner.kill()


def open_with(directory: Path, keyring: Keyring) -> Log:
    return holdfast.open(directory, share=True, settings=SETTINGS, keyring=keyring)


def keys_in_use(directory: Path) -> list[str]:
    """Of each key epoch the name of its key."""
    from holdfast.journal.proving.inspected_database import InspectedDatabase
    from holdfast.log_directory import Directory

    with InspectedDatabase.open(Directory(directory).database) as database:
        return [epoch.key_id for epoch in database.control_rows().key_epochs]


def test_a_member_rotates_and_everybody_goes_on(tmp_path: Path) -> None:
    old = Keyring.generate("one")
    new = old.rotated("two")
    with encrypted(tmp_path / "log", old) as (log, _), open_with(tmp_path / "log", old) as other:
        log.topic("orders").append(b"before")
        log.rotate_key(new)
        other.topic("orders").append(b"after")
        for member in (log, other):
            assert [record.payload for record in member.topic("orders").read()] == [b"before", b"after"]
        with open_with(tmp_path / "log", new) as late:
            assert late.topic("orders").append(b"late").offset == 2
        with pytest.raises(Invalid, match="same keys"):
            open_with(tmp_path / "log", old)
        log.rotate_key(new.rotated("three"))
        assert keys_in_use(tmp_path / "log")[-2:] == ["two", "three"]


def test_the_next_owner_writes_under_the_new_key(tmp_path: Path) -> None:
    old = Keyring.generate("one")
    with encrypted(tmp_path / "log", old) as (log, owner), open_with(tmp_path / "log", old) as other:
        other.rotate_key(old.rotated("two"))
        wait_until(lambda: log._journal.message_keys.keyring.current == "two")  # the owner's word may be on its way
        owner.kill()
        for member in (log, other):
            member.topic("orders").append(b"x")
        assert log.is_owner != other.is_owner
        assert keys_in_use(tmp_path / "log")[-2:] == ["two", "two"]
        pid = os.fork()  # the child opens the log anew, with the keys that it has now
        if pid == 0:
            code = 1
            try:
                log.topic("orders").append(b"child")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert len(list(log.topic("orders").read())) == 3


def test_a_process_that_is_stopped_keeps_the_old_key_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written under a key that somebody does not have. This process owns the log, another one is stopped."""
    monkeypatch.setattr(key_rotation, "_TAKE_S", 0.5)
    old = Keyring.generate("one")
    file = tmp_path / "keyring"
    old.save(file)
    with open_with(tmp_path / "log", old) as log:
        assert log.is_owner
        stopped = OwnerProcess(tmp_path / "log", keyring=file)
        stopped.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(
                Unavailable, match=f"did not take the key; nothing was changed pid={stopped.process.pid}"
            ):
                log.rotate_key(old.rotated("two"))
            log.topic("orders").append(b"x")
            assert set(keys_in_use(tmp_path / "log")) == {"one"}
        finally:
            stopped.process.send_signal(signal.SIGCONT)
        monkeypatch.setattr(key_rotation, "_TAKE_S", 30.0)
        log.rotate_key(old.rotated("three"))
        assert keys_in_use(tmp_path / "log")[-1] == "three"
        stopped.stop()


def test_what_is_no_rotation_is_refused_as_in_a_log_alone(tmp_path: Path) -> None:
    keyring = Keyring.generate("one")
    with encrypted(tmp_path / "log", keyring) as (member, _), holdfast.open(tmp_path / "a", keyring=keyring) as alone:
        for wrong in (Keyring.generate("two"), "file:keys", None):
            errors = []
            for log in (member, alone):
                with pytest.raises(Invalid) as caught:
                    log.rotate_key(wrong)  # type: ignore[arg-type]
                errors.append((caught.value.message, caught.value.hint))
            assert errors[0] == errors[1]


def test_a_log_without_keys_has_none_to_rotate(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "log", share=True) as member, holdfast.open(tmp_path / "alone") as alone:
        errors = []
        for log in (member, alone):
            with pytest.raises(Invalid) as caught:
                log.rotate_key(Keyring.generate())
            errors.append((caught.value.message, caught.value.hint))
        assert errors[0] == errors[1]
