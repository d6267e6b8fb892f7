"""Groups in files are proved from the database's row on: none is made up, left out, moved, or taken from elsewhere.

Most tests do what somebody without the key can do to the files of a killed owner: digests and checksums are right
afterwards, which anybody can compute; proofs are those that were there.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import apsw
import msgspec
import pytest
from blake3 import blake3
from tests.disk.test_group_files import crashed, filed, forge, frames, opened, patch, payloads

from holdfast import Corrupt, Keyring, Log
from holdfast.crypto import digests
from holdfast.crypto.vault import PLAIN, Vault
from holdfast.journal.commit import writer
from holdfast.journal.groups.group_frame import HEAD_BYTES, FrameProof, head_of, padded
from holdfast.journal.proving.proved_groups import ProvedGroups
from holdfast.model import frame
from holdfast.model.entry import Place, header

pytestmark = pytest.mark.disk

KINDS = ["plain", "keyed"]
SEQ, FIRST = 0, 2
PAYLOADS = [b"record %d" % i for i in range(8)]


class Left(NamedTuple):
    """What a killed owner left."""

    path: Path
    keyring: Keyring


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Eight groups of one length in a file alone, of a log with keys: made once."""
    place, keyring = tmp_path_factory.mktemp("left"), Keyring.generate("k1")
    with opened(place / "alive", keyring=keyring) as log:
        log.topic("t", partitions=2)
        for i, payload in enumerate(PAYLOADS):
            log.topic("t").append(payload, partition=i % 2)
        return Left(crashed(log, place / "log"), keyring)


def taken(file: Path, nth: int) -> bytes:
    """The bytes of a frame, with its padding."""
    at, size = frames(file)[nth]
    return file.read_bytes()[at : at + size]


def as_group(file: Path, data: bytes, group: int, proof: bytes | None = None) -> bytes:
    """A frame that says that it is another group: all that anybody can compute is right."""
    salt = file.read_bytes()[36:52]
    head = head_of(data, salt)
    assert head is not None
    control = msgspec.msgpack.decode(data[HEAD_BYTES : HEAD_BYTES + head.control_bytes])
    for entry in control[3]:
        entry[4] = group
    encoded = msgspec.msgpack.encode(control)
    start = struct.pack("<4sIQQ16s", data[:4], len(encoded), group, head.body_bytes, salt)
    proof = proof or head.proof
    bodies = data[HEAD_BYTES + head.control_bytes :][: head.body_bytes]
    whole = start + blake3(start + encoded).digest() + proof + struct.pack("<I", crc32(proof)) + encoded + bodies
    return whole + bytes(padded(len(whole)) - len(whole))


def swap(file: Path) -> None:
    first, second = taken(file, 3), taken(file, 4)
    patch(file, frames(file)[3][0], second + first)


def leave_out(file: Path) -> None:
    at, size = frames(file)[3]
    data = file.read_bytes()
    patch(file, at, data[at + size :] + bytes(size))


def repeat(file: Path) -> None:
    at, size = frames(file)[-1]
    patch(file, at + size, taken(file, -1))


def wrong_proof(file: Path) -> None:
    patch(file, frames(file)[-1][0], as_group(file, taken(file, -1), len(PAYLOADS) + groups_before(file), bytes(32)))


def proof_of_another(file: Path) -> None:
    at, _ = frames(file)[-1]
    proof = taken(file, -2)[72:104]
    patch(file, at + 72, proof + struct.pack("<I", crc32(proof)))


def plain_proof(file: Path) -> None:
    at, _ = frames(file)[-1]
    digest = taken(file, -1)[40:72]
    patch(file, at + 72, digest + struct.pack("<I", crc32(digest)))


def groups_before(file: Path) -> int:
    """The number of the group before the file's first."""
    head = head_of(taken(file, 0), file.read_bytes()[36:52])
    assert head is not None
    return head.group - 1


CHANGES = {
    "swapped": swap,
    "one left out": leave_out,
    "a wrong proof": wrong_proof,
    "the proof of another": proof_of_another,
    "a proof without a key": plain_proof,
}


@pytest.mark.parametrize("change", CHANGES)
def test_frames_that_somebody_moved_or_proved_are_refused(left, change, tmp_path):
    """An owner is refused; a reader learns of it. Numbers of groups and digests are right."""
    copy = shutil.copytree(left.path, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    (file,) = filed(copy)
    first = groups_before(file) + 1
    CHANGES[change](file)
    for number, (at, size) in enumerate(frames(file)):  # each in its place again, as far as that needs no key
        data = file.read_bytes()[at : at + size]
        head = head_of(data, file.read_bytes()[36:52])
        assert head is not None
        if head.group != first + number:
            patch(file, at, as_group(file, data, first + number))
    with pytest.raises(Corrupt):
        opened(copy, keyring=left.keyring)
    with opened(copy, keyring=left.keyring, read_only=True) as log:
        assert log.problems


def test_a_repeated_frame_is_not_taken(left, tmp_path):
    """The last one twice: it is one that was before, and no part of the log."""
    copy = shutil.copytree(left.path, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    repeat(filed(copy)[0])
    with opened(copy, keyring=left.keyring) as log:
        assert sorted(payloads(log)) == PAYLOADS


def test_files_of_another_copy_do_not_follow_the_database(left, tmp_path):
    """Two owners went on from the same directory, each in a copy: groups of the one do not fit the row of the other."""
    copies = [
        shutil.copytree(left.path, tmp_path / name, ignore=shutil.ignore_patterns("SOCKET"))
        for name in ("one", "other")
    ]
    for number, copy in enumerate(copies):
        with opened(copy, keyring=left.keyring) as log:
            log.topic("t").append(b"of %d" % number, partition=number)
            crashed(log, tmp_path / f"left-{number}")
    mixed = shutil.copytree(tmp_path / "left-0", tmp_path / "mixed", ignore=shutil.ignore_patterns("SOCKET"))
    shutil.rmtree(mixed / "groups")
    shutil.copytree(tmp_path / "left-1" / "groups", mixed / "groups")
    with pytest.raises(Corrupt):
        opened(mixed, keyring=left.keyring)


def changed(path: Path, sql: str, *bound: object) -> None:
    connection = apsw.Connection(str(path / "durable.db"))
    connection.execute(sql, bound)
    connection.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE log SET created_us = created_us + 1",
        "UPDATE log SET stamp = zeroblob(32)",
        "UPDATE log SET heads = zeroblob(32)",
        "UPDATE heads SET stamp = zeroblob(32) WHERE partition_id = 1",
        "UPDATE heads SET next_offset = next_offset + 1 WHERE partition_id = 1",
        "UPDATE heads SET link = randomblob(16) WHERE partition_id = 1",
        "UPDATE heads SET topic_id = 7 WHERE partition_id = 1",
        "UPDATE heads SET number = 5 WHERE partition_id = 2",
        "UPDATE heads SET key_epoch = 0",
        "DELETE FROM heads WHERE partition_id = 1",
        "UPDATE topics SET stamp = zeroblob(32)",
    ],
)
def test_rows_that_groups_in_files_go_on_from_must_be_what_they_were(left, sql, tmp_path):
    """That a later group would replace them does not hide a change of the database's rows."""
    copy = shutil.copytree(left.path, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    changed(copy, sql)
    with pytest.raises(Corrupt):
        opened(copy, keyring=left.keyring)
    with opened(copy, keyring=left.keyring, read_only=True) as log:
        assert log.problems


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups reach the database after a few entries."""
    monkeypatch.setattr(writer, "_LATE_ENTRIES_MAX", 3)


def database_of(log: Log, target: Path) -> None:
    """Copy everything but the files of groups."""
    shutil.copytree(log.path, target, ignore=shutil.ignore_patterns("groups", "SOCKET"))


@pytest.mark.parametrize("kind", KINDS)
def test_folds_that_a_power_cut_took_are_found_in_the_files(hasty, kind, tmp_path):
    """The database as it was before any of them, with files of now; and after each of them: everything is there."""
    keyring = Keyring.generate("k1") if kind == "keyed" else None
    expected = [b"%d" % i for i in range(14)]
    with opened(tmp_path / "log", keyring=keyring) as log:
        log.topic("t", partitions=2)
        for i, payload in enumerate(expected):
            log.topic("t").append(payload, partition=i % 2)
            if i >= 2:  # the first groups make the file ready
                database_of(log, tmp_path / f"cut-{i}")
        for i in range(2, len(expected)):
            shutil.copytree(log.path / "groups", tmp_path / f"cut-{i}" / "groups")
    rows = set()
    for i in range(2, len(expected)):
        cut = tmp_path / f"cut-{i}"
        connection = apsw.Connection(str(cut / "durable.db"))
        rows.add(connection.execute("SELECT groups FROM log").get)
        connection.close()
        with opened(cut, keyring=keyring, read_only=True) as log:
            assert log.problems == ()
            assert sorted(payloads(log), key=int) == expected
        with opened(cut, keyring=keyring) as log:
            assert sorted(payloads(log), key=int) == expected
            log.topic("t").append(b"99")
    assert len(rows) > 3, "some folds were in between"


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_beside_the_owner_goes_on_over_folds(hasty, kind, tmp_path):
    """It proves each group once, from whichever row the database has by then."""
    keyring = Keyring.generate("k1") if kind == "keyed" else None
    expected: list[bytes] = []
    with opened(tmp_path / "log", keyring=keyring) as log:
        log.topic("t").append(b"first")
        expected.append(b"first")
        with opened(tmp_path / "log", keyring=keyring, read_only=True) as beside:
            for i in range(20):
                expected.append(b"%d" % i)
                log.topic("t").append(expected[-1])
                if i % 3:
                    assert payloads(beside) == expected
                    assert beside.marks("t")[0].durable == len(expected)
                if i == 9 and keyring is not None:
                    keyring = keyring.rotated("k2")
                    log.rotate_key(keyring)
                    break
            assert beside.problems == ()
        with opened(tmp_path / "log", keyring=keyring, read_only=True) as beside:
            log.topic("t").append(b"last")
            assert payloads(beside) == [*expected, b"last"]


def test_a_group_of_a_new_key_goes_through_the_database_first(tmp_path):
    """What follows a row is proved by the key of that row."""
    keyring = Keyring.generate("k1")
    with opened(tmp_path / "log", keyring=keyring) as log:
        log.topic("t").append(b"old key")
        rotated = keyring.rotated("k2")
        log.rotate_key(rotated)
        late = log._journal._backend.filed
        log.topic("t").append(b"new key")
        assert not late.late.groups
        log.topic("t").append(b"in a file")
        assert late.late.groups
        copy = crashed(log, tmp_path / "copy")
    with opened(copy, keyring=rotated) as log:
        assert payloads(log) == [b"old key", b"new key", b"in a file"]


def test_a_refused_transaction_does_not_break_the_chain(tmp_path):
    """The database refuses a group after its row was made: the next frame follows the row that is there."""
    from holdfast.journal.sqlite.sqlite_backend import SqliteBackend

    with opened(tmp_path / "log") as log:
        log.topic("t").append(b"0")
        log.topic("t").append(b"through the database", idempotency_key="k")
        commit = SqliteBackend.commit
        with pytest.MonkeyPatch.context() as patched:

            def refuse(backend: SqliteBackend) -> None:
                from holdfast import Unavailable

                backend.rollback()
                raise Unavailable("full", hint="none")

            patched.setattr(SqliteBackend, "commit", refuse)
            with pytest.raises(Exception, match="full"):
                log.topic("t").append(b"refused", idempotency_key="k2")
        assert SqliteBackend.commit is commit
        backend = log._journal._backend
        backend.begin()
        backend.commit()  # one that does not store the log's row
        log.topic("t").append(b"1")
        copy = crashed(log, tmp_path / "copy")
    with opened(copy) as log:
        assert payloads(log) == [b"0", b"through the database", b"1"]


@pytest.mark.parametrize("column", [SEQ, FIRST])
def test_entries_that_leave_a_gap_are_refused_without_keys_too(column, tmp_path):
    """All digests are right, and nothing is missing in the files: the database ends elsewhere."""
    with opened(tmp_path / "log") as log:
        for payload in PAYLOADS:
            log.topic("t").append(payload)
        copy = crashed(log, tmp_path / "copy")

    def leave_gap(control: list[Any], entries: list[Any]) -> None:
        (entry,) = entries
        entry[column] += 1
        (file,) = filed(copy)
        log_id = file.read_bytes()[20:36]
        at = header(Place(log_id, "t", 0), entry[0], *entry[2:11], entry[12])
        entry[11] = digests.digest(at, frame.encode_one(PAYLOADS[-1], entry[8]))

    forge(filed(copy)[0], leave_gap)
    with pytest.raises(Corrupt, match="do not follow"):
        opened(copy)


# -- the chain by itself ----------------------------------------------------------------------------------


def vault() -> Vault:
    vault = Vault(bytes(16))
    assert vault.epoch == PLAIN
    return vault


def chain(count: int) -> list[FrameProof]:
    proofs, before, base = [], b"", b"stamp"
    for group in range(5, 5 + count):
        digest = b"%032d" % group
        proofs.append(FrameProof(group, PLAIN, before, base, digest, digest))
        before, base = digest, b""
    return proofs


BEGUN = ProvedGroups(b"stamp", 4)
BREAKS: dict[str, Callable[[list[FrameProof]], Any]] = {
    "another base": lambda proofs: proofs[0]._replace(base=b"other"),
    "no base": lambda proofs: proofs[0]._replace(base=b""),
    "another one before": lambda proofs: proofs[2]._replace(before=b"other"),
    "nothing before": lambda proofs: proofs[2]._replace(before=b""),
    "the base in place of the one before": lambda proofs: proofs[2]._replace(before=b"", base=b"stamp"),
    "another number": lambda proofs: proofs[2]._replace(group=9),
    "another key epoch": lambda proofs: proofs[2]._replace(key_epoch=1),
    "another proof": lambda proofs: proofs[2]._replace(proof=bytes(32)),
    "another digest": lambda proofs: proofs[2]._replace(digest=bytes(32)),
}


def test_a_chain_is_proved_in_any_pieces():
    """At once, or as it comes; what was proved is not asked again."""
    proofs = chain(6)
    whole = BEGUN.go_on(proofs, PLAIN, vault())
    assert whole == (b"stamp", 10, proofs[-1].proof)
    for cut in range(len(proofs) + 1):
        part = BEGUN.go_on(proofs[:cut], PLAIN, vault())
        assert part is not None
        assert part.go_on(proofs, PLAIN, vault()) == whole


@pytest.mark.parametrize("name", BREAKS)
def test_a_chain_with_anything_else_in_it_is_not_proved(name):
    """Whatever differs, in whichever of its links."""
    proofs = chain(4)
    broken = BREAKS[name](proofs)
    at = 0 if name.endswith("base") else 2
    assert BEGUN.go_on([*proofs[:at], broken, *proofs[at + 1 :]], PLAIN, vault()) is None


def test_a_chain_of_digests_proves_nothing_in_a_log_with_keys():
    """Anybody can make one."""
    keyed = Vault(bytes(16), Keyring.generate("k1"))
    assert BEGUN.go_on(chain(2), PLAIN, keyed) is None
