"""What somebody does to an execution's rows in the file: refused when the execution is opened, before anything runs.

The whole journal is proved, and its rows and spaces with it:
edited, deleted, truncated, swapped, moved, added and put back.  By the attacker's
means: SQL on the database of a log that nobody has open.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import apsw
import msgspec
import pytest

import holdfast
from holdfast import Corrupt, HoldfastError, Keyring, Log, Settings
from holdfast.errors import UnsupportedEntryKind
from holdfast.execution.journal.commit_parts import PREFIX
from holdfast.execution.journal.entries import EffectIntent
from holdfast.execution.steps.claim_check import put_aside
from holdfast.testing import ManualClock
from tests.executions.by_hand import append, entries, fold_now, opened, release, steps
from tests.executions.test_live_journal import result

pytestmark = pytest.mark.disk

QUIET = Settings.from_mapping({"segments": {"seal_on_close": False}})
MINE = "SELECT id FROM spaces WHERE CAST(name AS TEXT) = 'execution/' || ?"
OF_MINE = f"WHERE space_id = ({MINE})"
ONE_BYTE = "CAST(substr(body, 1, 9) || x'41' || substr(body, 11) AS BLOB)"
REPEAT = "INSERT INTO space_items SELECT space_id, CAST(key || x'00' AS BLOB), 9, key_epoch, body FROM space_items"
SECRET = b"SECRET-RESULT-OF-A-STEP"


def open_at(path: Path, keyring: Keyring | None) -> Log:
    return holdfast.open(path, settings=QUIET, keyring=keyring)


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def made(request, tmp_path_factory) -> tuple[Path, Keyring | None, list[UUID]]:
    """A log with two executions of five entries, and the same before the last of them was written."""
    path = tmp_path_factory.mktemp("made")
    keyring = Keyring.generate(clock=ManualClock(seed=7)) if request.param == "encrypted" else None
    with open_at(path / "log", keyring) as log:
        ids = [opened(log), opened(log)]
        for execution in ids:
            append(log, execution, EffectIntent("pay", b"k" * 32, "exactly_once_guarded", 1))
            for name in ("a", "b"):
                append(log, execution, result(name, SECRET))
    shutil.copytree(path / "log", path / "older")
    with open_at(path / "log", keyring) as log:
        for execution in ids:
            opened(log, execution=execution)
            append(log, execution, result("c", SECRET))
    return path, keyring, ids


@pytest.fixture
def attacked(made, tmp_path) -> Callable[..., None]:
    """Attack a copy with SQL, or with files, and say what comes of opening the first execution."""
    path, keyring, ids = made

    def attack(sql: str = "", *values: object, files: Callable[[Path, Path], None] | None = None) -> None:
        shutil.copytree(path / "log", tmp_path / "log")
        if sql:
            with apsw.Connection(str(tmp_path / "log/durable.db")) as database:
                database.execute(sql, values)
                assert database.changes() >= 1
            database.close()
        if files is not None:
            files(path / "older", tmp_path / "log")
        with open_at(tmp_path / "log", keyring) as log:
            opened(log, execution=ids[0])

    return attack


def test_left_alone_it_opens(made, attacked):
    """And has its past."""
    attacked()


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param(sql, id=name)
        for name, sql in {
            "edited": f"UPDATE space_items SET body = CAST(body || x'00' AS BLOB) {OF_MINE}",
            "one byte": f"UPDATE space_items SET body = {ONE_BYTE} {OF_MINE}",
            "truncated": f"UPDATE space_items SET body = substr(body, 1, length(body) - 1) {OF_MINE}",
            "emptied": f"UPDATE space_items SET body = x'' {OF_MINE}",
            "the first is deleted": f"DELETE FROM space_items {OF_MINE} AND number = 0",
            "the last is deleted": f"DELETE FROM space_items {OF_MINE} AND number = 5",
            "an intent is deleted": f"DELETE FROM space_items {OF_MINE} AND number = 1",
            "all are deleted": f"DELETE FROM space_items {OF_MINE}",
            "renumbered": f"UPDATE space_items SET number = number + 1 {OF_MINE}",
            "repeated": f"{REPEAT} {OF_MINE} AND number = 2",
            "counted less": f"UPDATE spaces SET items = items - 1 WHERE id = ({MINE})",
            "another sum": f"UPDATE spaces SET sum = zeroblob(32) WHERE id = ({MINE})",
            "the space is gone": f"DELETE FROM spaces WHERE id = ({MINE})",
            "the space is renamed": f"UPDATE spaces SET name = x'6f74686572' WHERE id = ({MINE})",
        }.items()
    ],
)
def test_what_was_done_to_its_rows_is_found(made, attacked, sql):
    """Before anything runs; the error says what is wrong and what to do."""
    with pytest.raises(Corrupt) as caught:
        attacked(sql, str(made[2][0]))
    assert caught.value.hint
    assert "SECRET" not in str(caught.value)


def test_rows_of_another_execution_are_found(made, attacked):
    """Swapped: each row is bound to its space."""
    others = MINE.replace("?", "?1")
    theirs = f"SELECT body FROM space_items AS o WHERE o.space_id = ({others}) AND o.number = space_items.number"
    sql = f"UPDATE space_items SET body = ({theirs}) WHERE space_id = ({MINE.replace('?', '?2')})"
    with pytest.raises(Corrupt):
        attacked(sql, str(made[2][1]), str(made[2][0]))


def test_a_space_that_is_put_back_is_found(made, attacked):
    """Rows of the whole space as they were before the last entry, taken from an old copy of the file."""

    def put_back(older: Path, log: Path) -> None:
        database = apsw.Connection(str(log / "durable.db"))
        database.execute("ATTACH ? AS old", (str(older / "durable.db"),))
        [(space,)] = database.execute(MINE, (str(made[2][0]),))
        database.execute("DELETE FROM main.space_items WHERE space_id = ?", (space,))
        database.execute("INSERT INTO main.space_items SELECT * FROM old.space_items WHERE space_id = ?", (space,))
        database.execute("DELETE FROM main.spaces WHERE id = ?", (space,))
        database.execute("INSERT INTO main.spaces SELECT * FROM old.spaces WHERE id = ?", (space,))
        database.close()

    with pytest.raises(Corrupt):
        attacked(files=put_back)


def test_a_status_that_was_changed_is_found(made, attacked):
    """A row of the index: nobody makes a canceled execution run again, or a running one complete."""
    sql = """UPDATE space_items SET body = CAST(body || x'00' AS BLOB) WHERE space_id = (SELECT id FROM spaces
        WHERE CAST(name AS TEXT) = 'executions') AND key = ?"""
    with pytest.raises(Corrupt):
        attacked(sql, made[2][0].bytes)


def test_nothing_of_it_is_readable_in_the_file(made):
    """Encrypted at rest, wherever the bytes lie; results, paths, notes and inputs. (1.5: looked at as raw bytes.)"""
    path, keyring, _ = made
    found = any(SECRET in file.read_bytes() for file in (path / "log").rglob("*") if file.is_file())
    assert found is (keyring is None)
    for word in (b"exactly_once_guarded", b"import"):
        found = any(word in file.read_bytes() for file in (path / "log").rglob("*") if file.is_file())
        assert found is (keyring is None)


def test_values_kept_by_reference_are_encrypted_and_proved(tmp_path, keyring):
    """Claim checks are no back door."""
    with open_at(tmp_path / "log", keyring) as log:
        execution = opened(log)
        live = log._executions.room().live.get(execution)
        _, operations, size = put_aside(log._journal, execution, "a", SECRET)
        live.store.write(live.journal, result("a"), operations, size=size).result()
    assert not any(SECRET in file.read_bytes() for file in (tmp_path / "log").rglob("*") if file.is_file())


def test_key_rotation_goes_on_with_what_is_open(tmp_path, keyring):
    """What the old key encrypted is read, what comes is the new one's, nothing is aborted."""
    newer = Keyring({"newer": bytes(range(32)), **keyring._keys})
    with open_at(tmp_path / "log", keyring) as log:
        execution = opened(log)
        append(log, execution, result("before"))
        log.rotate_key(newer)
        append(log, execution, result("after"))
        fold_now(log, execution)
        append(log, execution, result("last"))
    with open_at(tmp_path / "log", newer) as log:
        assert opened(log, execution=execution) == execution
        assert steps(log, execution) == ["before", "after", "last"]


def test_without_its_key_nothing_opens(tmp_path, keyring):
    """A wrong key is no legacy."""
    with open_at(tmp_path / "log", keyring) as log:
        opened(log)
    with pytest.raises(HoldfastError):
        open_at(tmp_path / "log", Keyring.generate(clock=ManualClock(seed=99)))
    with pytest.raises(HoldfastError):
        open_at(tmp_path / "log", None)


def test_a_newer_kind_of_entry_fails_closed(tmp_path):
    """An entry that this version does not know stops the execution, not the log."""
    with open_at(tmp_path / "log", None) as log:
        execution, other = opened(log), opened(log)
        release(log, execution)
        body = msgspec.msgpack.encode([1, execution.bytes, 1, [[99, "a", b"?"]]])
        item = (b"b" + (1).to_bytes(8, "big") + (1).to_bytes(4, "big"), 1, body)
        log._journal.spaces.change(PREFIX + str(execution), [item], timeout=5).result()
        with pytest.raises(UnsupportedEntryKind) as caught:
            entries(log, execution)
        assert "newer" in caught.value.hint
        append(log, other, result("a"))
