"""Files of groups: what was acknowledged in them is there after a crash, and what somebody did to them is found.

Most tests copy the directory of an open log, which is what a killed process leaves, and do something to the copy.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import msgspec
import pytest
from blake3 import blake3
from click.testing import CliRunner, Result
from tests.disk.test_displaced import owner
from tests.segments.planting import wait_for

import holdfast
from holdfast import Closed, Corrupt, HoldfastError, Keyring, Log, OutcomeUnknown, Record, Settings, Unavailable, disk
from holdfast.cli.program import program
from holdfast.journal.commit import writer
from holdfast.journal.groups.group_files import GroupFiles
from holdfast.journal.groups.group_frame import HEAD_BYTES, SECTOR_BYTES, head_of, padded
from holdfast.journal.groups.preallocated_file import FRAMES_BEGIN, GroupFile
from holdfast.journal.sqlite.group_file_store import GroupFileStore
from holdfast.testing import Fault, FaultyDisk

pytestmark = pytest.mark.disk

SMALL = Settings.from_mapping(
    {"journal": {"group_file_bytes": "64KiB"}, "segments": {"seal_on_close": False}, "disk": {"free_bytes_min": 0}}
)
PAYLOADS = [b"record %d" % i for i in range(6)]


@pytest.fixture(autouse=True)
def slow_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: groups stay in files alone until there are many."""
    monkeypatch.setattr(writer, "_FOLD_S", 3600.0)


def keyring_of(kind: str) -> Keyring | None:
    return Keyring.generate("k1") if kind == "keyed" else None


def filed(log: Path) -> list[Path]:
    """The files of groups of a log, in order."""
    return sorted((log / "groups").iterdir()) if (log / "groups").is_dir() else []


def crashed(log: Log, target: Path) -> Path:
    """What a kill would leave now."""
    shutil.copytree(log.path, target, ignore=shutil.ignore_patterns("SOCKET"))
    return target


def payloads(log: Log, topic: str = "t") -> list[bytes]:
    return [record.payload for record in log.topic(topic).read()]


def opened(path: Path, **options: Any) -> Log:
    return holdfast.open(path, **{"settings": SMALL, **options})


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Keyring | None]]:
    """What a killed owner of six groups left, plain or keyed: made once."""
    made: dict[str, tuple[Path, Keyring | None]] = {}

    def get(kind: str) -> tuple[Path, Keyring | None]:
        if kind not in made:
            place, keyring = tmp_path_factory.mktemp(kind), keyring_of(kind)
            with opened(place / "alive", keyring=keyring) as log:
                for payload in PAYLOADS:
                    log.topic("t").append(payload)
                made[kind] = (crashed(log, place / "log"), keyring)
        return made[kind]

    return get


def frames(file: Path) -> list[tuple[int, int]]:
    """Where the frames of a file begin, and how long they are."""
    data, found, at = file.read_bytes(), [], FRAMES_BEGIN
    salt = data[36:52]
    while (head := head_of(data[at : at + HEAD_BYTES], salt)) is not None:
        found.append((at, head.size))
        at += head.size
    return found


def patch(file: Path, at: int, data: bytes) -> None:
    with file.open("r+b") as stream:
        stream.seek(at)
        stream.write(data)


# -- what a crash leaves ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_a_copy_of_an_open_log_has_every_acknowledged_record(left, kind, tmp_path):
    """A reader sees them before any owner came; the next owner has them all, in order, and goes on."""
    source, keyring = left(kind)
    copy = shutil.copytree(source, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    assert len(frames(filed(copy)[0])) == len(PAYLOADS)
    with opened(copy, read_only=True, keyring=keyring) as log:
        assert payloads(log) == PAYLOADS
        assert log.problems == ()
        assert log.marks("t")[0].durable == len(PAYLOADS)
    with opened(copy, keyring=keyring) as log:
        assert payloads(log) == PAYLOADS
        assert log.topic("t").append(b"more").offset == len(PAYLOADS)
    with opened(copy, keyring=keyring) as log:
        assert payloads(log) == [*PAYLOADS, b"more"]


def test_inspect_and_status_see_groups_that_are_in_files_alone(left, tmp_path):
    """Before any owner came, and without a change to any file."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    before = filed(copy)[0].read_bytes()
    found = inspected(copy)
    assert found.exit_code == 0
    lines = [json.loads(line) for line in found.stdout.splitlines()]
    assert [line["first"] for line in lines if line["type"] == "entry"] == list(range(len(PAYLOADS)))
    status = json.loads(CliRunner().invoke(program, ["status", str(copy), "--json"]).stdout)
    assert (status["records"], status["problems"]) == (len(PAYLOADS), [])
    assert filed(copy)[0].read_bytes() == before


def inspected(log: Path) -> Result:
    return CliRunner().invoke(program, ["inspect", str(log), "--json"])


@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_plain_groups_between_all_others_survive_a_crash_at_each_step(kind, tmp_path):
    """Idempotency keys, transactions, spaces, new topics and keys in between: order, marks and content are right."""
    keyring = keyring_of(kind)
    expected: list[bytes] = []

    def check(step: int) -> None:
        copy = crashed(log, tmp_path / f"copy-{step}")
        with opened(copy, read_only=True, keyring=keyring) as again:
            assert payloads(again) == expected
        with opened(copy, keyring=keyring) as again:
            assert payloads(again) == expected
            assert again.marks("t")[0].durable == len(expected)
            assert again.topic("t").append(b"x").offset == len(expected)

    def change(step: int) -> None:
        nonlocal keyring
        if step % 5 == 0:
            log.topic("t").append(b"once", idempotency_key=f"k{step}")
            expected.append(b"once")
        elif step % 5 == 1:
            with log.transaction() as tx:
                tx.append("t", b"together")
                tx.put("s", "newest", b"%d" % step)
            expected.append(b"together")
        elif step % 5 == 2:
            log.topic(f"other-{step}").append(b"elsewhere")
        elif step % 5 == 3 and keyring is not None:
            keyring = keyring.rotated(f"k{step}")
            log.rotate_key(keyring)
        else:
            log.topic("t").append_batch([Record(b"batch"), Record(b"batched")])
            expected.extend([b"batch", b"batched"])

    with opened(tmp_path / "log", keyring=keyring) as log:
        for step in range(6):
            log.topic("t").append(b"plain %d" % step)
            expected.append(b"plain %d" % step)
            change(step)
            if step % 2:
                log.topic("t").append(b"and %d" % step)
                expected.append(b"and %d" % step)
            check(step)


def test_crash_after_crash_without_sealing_keeps_everything(tmp_path):
    """Three generations, each with files of its own."""
    path, expected = tmp_path / "0", []
    for turn in range(3):
        with opened(path) as log:
            for i in range(30):
                expected.append(b"%d/%d " % (turn, i) + bytes(3000))
                log.topic("t").append(expected[-1])
            assert payloads(log) == expected
            path = crashed(log, tmp_path / str(turn + 1))
    with opened(path, read_only=True) as log:
        assert payloads(log) == expected
    with opened(path) as log:
        assert payloads(log) == expected


# -- torn and damaged -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_a_torn_last_group_is_gone_and_nothing_else(left, kind, tmp_path):
    """Whatever sector of the last frame is zero, or byte of it is another: all but the last group is there, whole."""
    source, keyring = left(kind)
    at, size = frames(filed(source)[0])[-1]
    used = len(filed(source)[0].read_bytes()[at : at + size].rstrip(b"\0"))
    spots = [(at + sector, bytes(SECTOR_BYTES)) for sector in range(0, used, SECTOR_BYTES)]
    data = filed(source)[0].read_bytes()
    spots += [(at + i, bytes([data[at + i] ^ 0x40])) for i in range(0, used, max(1, used // 12))]
    for number, (place, damage) in enumerate(spots):
        copy = shutil.copytree(source, tmp_path / str(number), ignore=shutil.ignore_patterns("SOCKET"))
        patch(filed(copy)[0], place, damage)
        with opened(copy, read_only=True, keyring=keyring) as log:
            assert payloads(log) == PAYLOADS[:-1], place - at
            assert log.problems == ()
        if number % 3 == 0:
            with opened(copy, keyring=keyring) as log:
                assert log.topic("t").append(b"on").offset == len(PAYLOADS) - 1
                assert payloads(log) == [*PAYLOADS[:-1], b"on"]


def test_bytes_behind_the_last_group_do_not_matter(left, tmp_path):
    """Whatever an earlier use of the file left there."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    at, size = frames(filed(copy)[0])[-1]
    patch(filed(copy)[0], at + size, b"hfg1" + os.urandom(4000))
    with opened(copy) as log:
        assert payloads(log) == PAYLOADS


def test_a_payload_cannot_pass_for_a_group(tmp_path):
    """One that looks like the heads of later groups, at the edges of sectors, in a group that a power cut tore."""
    forged = struct.pack("<4sIQQ16s32s32sI", b"hfg1", 100, 2**40, 0, bytes(16), bytes(32), bytes(32), 0)
    with opened(tmp_path / "log") as log:
        log.topic("t").append(b"M" * 9000)
        edge = -filed(log.path)[0].read_bytes().index(b"MMMM") % SECTOR_BYTES
        payload = bytearray(9000)
        for sector in range(13):  # the part before the payload may be some bytes longer or shorter this time
            at = edge + sector * SECTOR_BYTES + sector - 6
            payload[max(0, at) : max(0, at) + len(forged)] = forged
        log.topic("t").append(bytes(payload))
        copy = crashed(log, tmp_path / "copy")
    data = filed(copy)[0].read_bytes()
    assert [
        at
        for at in range(frames(filed(copy)[0])[1][0] + 1, len(data))
        if data[at : at + HEAD_BYTES] == forged and not at % 512
    ]
    at, _ = frames(filed(copy)[0])[-1]
    patch(filed(copy)[0], at + 8500, b"torn")
    with opened(copy) as log:
        assert payloads(log) == [b"M" * 9000]


@pytest.mark.parametrize("what", ["head", "control", "body", "zeros", "beginning"])
def test_a_damaged_group_with_later_ones_behind_it_is_corrupt(left, what, tmp_path):
    """An owner is refused, and nothing is lost by that; a reader learns of it."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    file = filed(copy)[0]
    at, size = frames(file)[2]
    data = file.read_bytes()
    used = len(data[at : at + size].rstrip(b"\0"))
    place = {"head": at, "control": at + HEAD_BYTES + 3, "body": at + used - 1, "zeros": at, "beginning": 20}[what]
    patch(file, place, bytes(size) if what == "zeros" else bytes([data[place] ^ 1]))
    spoiled = file.read_bytes()
    for _ in range(2):
        with pytest.raises(Corrupt, match=r"groups? "):
            opened(copy)
    with opened(copy, read_only=True) as log:
        assert log.problems
        assert payloads(log) == (PAYLOADS[:2] if what != "beginning" else [])
    assert inspected(copy).exit_code != 0
    patch(file, place, data[place : place + size])
    assert len(spoiled) == len(data)
    with opened(copy) as log:
        assert payloads(log) == PAYLOADS


@pytest.mark.parametrize("how", ["deleted", "truncated", "from before", "of another log", "another number"])
def test_a_file_that_the_database_counts_on_is_missed(how, tmp_path):
    """Its entries are known there: no owner opens the log, reading them is Corrupt, and an inspection tells."""
    with opened(tmp_path / "log") as log:
        log.topic("t").append(b"first")
        early = crashed(log, tmp_path / "early")
        for payload in PAYLOADS:
            log.topic("t").append(payload)
        log.topic("t").append(b"through the database", idempotency_key="k")
        log.topic("t").append(b"late")
        copy = crashed(log, tmp_path / "copy")
    (file,) = filed(copy)
    if how == "deleted":
        file.unlink()
    elif how == "truncated":
        os.truncate(file, frames(file)[3][0])
    elif how == "from before":
        shutil.copy(filed(early)[0], file)
    elif how == "of another log":
        with opened(tmp_path / "other") as other:
            for _ in range(9):
                other.topic("t").append(b"foreign")
            shutil.copy(filed(other.path)[0], file)
    else:
        file.rename(file.with_name(f"{int(file.name) + 1:020d}"))
    assert inspected(copy).exit_code != 0
    with opened(copy, read_only=True) as log, pytest.raises(Corrupt):
        payloads(log)
    with pytest.raises(Corrupt, match="file of groups"):
        opened(copy)


@pytest.mark.parametrize("how", ["cut", "gone", "older"])
@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_the_end_of_the_files_is_missed_once_nothing_was_written_for_a_while(kind, how, tmp_path, monkeypatch):
    """What lies in files alone is soon named by the database: then cutting it off, or an older copy, is refused."""
    monkeypatch.setattr(writer, "_FOLD_S", 0.05)
    keyring = keyring_of(kind)
    with opened(tmp_path / "log", keyring=keyring) as log:
        log.topic("t").append(b"first")
        early = crashed(log, tmp_path / "early")
        for payload in PAYLOADS:
            log.topic("t").append(payload)
        wait_for(lambda: not log._journal._backend.filed.late.entries)
        copy = crashed(log, tmp_path / "copy")
    (file,) = filed(copy)
    if how == "cut":
        at, size = frames(file)[-1]
        patch(file, at, bytes(size))
    elif how == "gone":
        shutil.rmtree(copy / "groups")
    else:
        shutil.copy(filed(early)[0], file)
    with pytest.raises(Corrupt, match="a file of groups ends before what the database has of it"):
        opened(copy, keyring=keyring)


# -- forged and hostile -----------------------------------------------------------------------------------


def forge(file: Path, change: Callable[[list[Any], list[Any]], object], nth: int = -1) -> None:
    """Change what a frame follows or its entries; its digest is right, and its proof where anybody can make one."""
    data = file.read_bytes()
    at, _ = frames(file)[nth]
    salt = data[36:52]
    head = head_of(data[at : at + HEAD_BYTES], salt)
    assert head is not None
    control = msgspec.msgpack.decode(data[at + HEAD_BYTES : at + HEAD_BYTES + head.control_bytes])
    bodies = data[at + HEAD_BYTES + head.control_bytes :][: head.body_bytes]
    change(control, control[3])
    encoded = msgspec.msgpack.encode(control)
    sizes = [entry[15] for entry in control[3] if isinstance(entry[15], int)]
    size = sum(sizes) if 0 <= sum(sizes) < 2**64 else head.body_bytes
    start = struct.pack("<4sIQQ16s", b"hfg1", len(encoded), head.group, size, salt)
    digest = blake3(start + encoded).digest()
    proof = digest if head.proof == head.digest else head.proof
    whole = start + digest + proof + struct.pack("<I", crc32(proof)) + encoded + bodies
    patch(file, at, whole + bytes(padded(len(whole)) - len(whole)))


FOLLOWS, ENTRY = 0, 1


def set_value(part: int, column: int, value: object) -> Callable[..., None]:
    def change(*parts: list[Any]) -> None:
        row = parts[part] if part == FOLLOWS else parts[part][0]
        row[column] = value(row[column]) if callable(value) else value

    return change


FORGERIES = {
    "the key epoch": set_value(FOLLOWS, 0, lambda old: old + 1),
    "no key epoch": set_value(FOLLOWS, 0, 0),
    "what is before": set_value(FOLLOWS, 1, lambda old: bytes(len(old))),
    "nothing before": set_value(FOLLOWS, 1, b""),
    "another base": set_value(FOLLOWS, 2, bytes(32)),
    "a session": lambda control, entries: control.extend([[[b"a" * 17, 1, 1, 1, b"", 0]], [], 1, bytes(32)]),
    "another number": set_value(ENTRY, 0, lambda old: old - 1),
    "the group's number": set_value(ENTRY, 4, lambda old: old + 1),
    "the partition's id": set_value(ENTRY, 1, lambda old: old + 1),
    "no entries": lambda control, entries: entries.clear(),
}
_TORN = {"no key epoch", "the key epoch", "another number", "the group's number", "no entries"}
"""What does not even fit itself is taken for torn; so it is where an entry's own digest covers it."""


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_group_of_a_keyed_log_is_refused(left, name, tmp_path):
    """Its digest is right, which anybody can compute; its proof is not. Or it is taken for torn: then it is gone."""
    source, keyring = left("keyed")
    copy = shutil.copytree(source, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    forge(filed(copy)[0], FORGERIES[name])
    try:
        with opened(copy, keyring=keyring) as log:
            assert payloads(log) == PAYLOADS[:-1]
    except HoldfastError:
        return
    assert name in _TORN


HOSTILE = {
    "a huge key epoch": set_value(FOLLOWS, 0, 2**64 - 1),
    "text for a proof": set_value(FOLLOWS, 1, "before"),
    "a long proof": set_value(FOLLOWS, 1, bytes(2**20)),
    "a huge count of sessions": lambda control, entries: control.extend([[], [b"a"], 2**63, b""]),
    "a session of another type": lambda control, entries: control.extend([[["a"]], [], 1, b""]),
    "sessions that nobody counted": lambda control, entries: control.extend([[], [b"gone"]]),
    "a huge offset": set_value(ENTRY, 2, 2**64 - 1),
    "a body beyond everything": set_value(ENTRY, 15, 2**62),
    "text for a number": set_value(ENTRY, 0, "1"),
    "a number that is taken": set_value(ENTRY, 0, 1),
    "a link of another length": set_value(ENTRY, 10, b"short"),
    "a partition beyond everything": set_value(ENTRY, 14, 2**63),
    "no partition": set_value(ENTRY, 1, 2**62),
    "a partition that is not there": set_value(ENTRY, 1, 7),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["plain", "keyed"])
def test_hostile_values_are_refused_with_a_typed_error_or_taken_for_torn(left, kind, name, tmp_path):
    """Whatever a frame with a right digest says: no other exception, and nothing that was before is lost."""
    source, keyring = left(kind)
    copy = shutil.copytree(source, tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    forge(filed(copy)[0], HOSTILE[name])
    for read_only in (True, False):
        try:
            with opened(copy, keyring=keyring, read_only=read_only) as log:
                assert payloads(log)[: len(PAYLOADS) - 1] == PAYLOADS[:-1]
        except HoldfastError:
            pass


def test_bodies_of_negative_length_do_not_ask_for_memory(left, tmp_path):
    """Lengths that add up to what is there, one of them beyond all memory and one below zero."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))

    def split(control: list[Any], entries: list[Any]) -> None:
        size = entries[0][15]
        entries.append([*entries[0][:15], size - 2**50])
        entries[0][15] = 2**50

    forge(filed(copy)[0], split)
    with opened(copy) as log:
        assert payloads(log) == PAYLOADS[:-1]


@pytest.mark.parametrize(
    ("control", "bodies"), [(2**32 - 1, 0), (64 * 2**20, 0), (100, 2**64 - 1), (0, 0), (100, 2**40)]
)
def test_hostile_lengths_are_no_frame(left, control, bodies, tmp_path):
    """A head that promises more than there can be is where a power cut struck."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    file = filed(copy)[0]
    at, _ = frames(file)[-1]
    data = file.read_bytes()
    patch(file, at, struct.pack("<4sIQQ16s", b"hfg1", control, 99, bodies, data[36:52]))
    patch(file, at + 8, data[at + 8 : at + 16])
    with opened(copy) as log:
        assert payloads(log) == PAYLOADS[:-1]


def test_a_file_full_of_heads_takes_one_reading(left, tmp_path):
    """Each sector promises a long frame; none of them is hashed to its end."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    file = filed(copy)[0]
    at, size = frames(file)[-1]
    salt = file.read_bytes()[36:52]
    head = struct.pack("<4sIQQ16s32s", b"hfg1", 30 * 2**20, 2**40, 0, salt, bytes(32))
    sector = head.ljust(SECTOR_BYTES, b"\0")
    with file.open("r+b") as stream:
        stream.seek(at + size)
        stream.write(sector * (32 * 2**20 // SECTOR_BYTES))
        stream.write(bytes(31 * 2**20))
    with pytest.raises(Corrupt, match="later ones can"):
        opened(copy)


@pytest.mark.parametrize("what", ["fifo", "directory", "link", "loop", "names", "high number", "not a folder"])
def test_what_is_no_file_of_groups_is_refused_or_passed_over(left, what, tmp_path):
    """No hang, no other exception; once it is gone the log is whole."""
    copy = shutil.copytree(left("plain")[0], tmp_path / "log", ignore=shutil.ignore_patterns("SOCKET"))
    folder = copy / "groups"
    odd = folder / f"{7:020d}"
    if what == "fifo":
        os.mkfifo(odd)
    elif what == "directory":
        odd.mkdir()
    elif what == "link":
        odd.symlink_to("/dev/zero")
    elif what == "names":
        for name in ("1", "x" * 20, "²" * 20, "-" + "0" * 18 + "1", f"{2**62 + 1:020d}", "9" * 20, f"{0:020d}"):
            (folder / name).write_bytes(b"hfgroups")
    elif what == "high number":
        odd = folder / f"{2**62:020d}"
        odd.touch()
    else:
        odd = folder
        folder.rename(tmp_path / "kept")
        folder.symlink_to("groups") if what == "loop" else folder.write_bytes(b"")
    for read_only in (True, False):
        try:
            with opened(copy, read_only=read_only) as log:
                assert payloads(log) == (PAYLOADS if what != "not a folder" else [])
                if not read_only:
                    again = crashed(log, tmp_path / "again")
                    log.topic("t").append(b"on")
        except (Corrupt, Unavailable) as error:
            assert what not in {"names", "not a folder"}
            assert error.hint
        else:
            assert read_only or again.exists()
            if what == "not a folder":
                return
    if what == "directory":
        odd.rmdir()
    elif what != "names":
        odd.unlink()
    if what == "loop":
        (tmp_path / "kept").rename(folder)
    with opened(copy) as log:
        assert payloads(log)[: len(PAYLOADS)] == PAYLOADS


# -- readers beside a writer ------------------------------------------------------------------------------

READER = """
import sys
import holdfast

with holdfast.open(sys.argv[1], read_only=True) as log:
    for number, record in enumerate(log.topic("t").follow(0)):
        if number == 0:
            print("reading", flush=True)
        assert record.offset == number and record.payload[:8] == b"%08d" % number, (number, record.payload[:9])
        assert len(record.payload) == 2508 + number % 7
        if number == int(sys.argv[2]) - 1:
            break
    assert not log.problems
print("all", flush=True)
"""


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups reach the database after a few entries."""
    monkeypatch.setattr(writer, "_LATE_ENTRIES_MAX", 5)


def numbered(count: int, size: int = 2500) -> Iterator[bytes]:
    return (b"%08d" % i + bytes(size + i % 7) for i in range(count))


def test_all_ways_of_reading_are_equal_to_a_list(hasty, tmp_path):
    """In the owner and beside it, forward, backward, in the middle, by time, while groups move and files come back."""
    expected: list[bytes] = []
    with opened(tmp_path / "log") as log, opened_beside(log) as beside:
        topic = log.topic("t")
        follower, consumer = iter(topic.follow(0)), iter(topic.consumer("c"))
        for i, payload in enumerate(numbered(150)):
            topic.append(payload)
            expected.append(payload)
            assert next(follower).payload == payload
            assert next(consumer).payload == payload
            if i % 40 == 39:
                log.seal()
            if i % 5 == 0:
                for handle in (topic, beside.topic("t")):
                    assert [r.payload for r in handle.read(max(0, i - 10))] == expected[max(0, i - 10) :]
                    assert [r.payload for r in handle.read(i // 2, reverse=True)] == expected[i // 2 :][::-1]
            if i % 25 == 7:
                for handle in (topic, beside.topic("t")):
                    found = list(handle.read())
                    assert [(r.offset, r.payload) for r in found] == list(enumerate(expected))
                    assert [r.payload for r in handle.read(-7)] == expected[-7:]
                    since = [r.payload for r in handle.read(since=found[i // 2].time)]
                    assert since[-(i - i // 2) :] == expected[i // 2 + 1 :]
        assert beside.problems == ()


def opened_beside(log: Log) -> Log:
    log.topic("t")
    return opened(log.path, read_only=True)


def test_slow_readers_keep_their_places_while_files_come_back(hasty, tmp_path):
    """They meet files that serve another purpose by then, and take their records out of segments."""
    expected = list(numbered(200))
    with opened(tmp_path / "log") as log, opened_beside(log) as beside:
        topic = log.topic("t")
        slow: list[tuple[list[bytes], Iterator[Any]]] = []
        for i, payload in enumerate(expected):
            topic.append(payload)
            if i % 20 == 19:
                slow += [([], iter(handle.read(max(0, i - 15)))) for handle in (topic, beside.topic("t"))]
                slow += [([], iter(handle.read(max(0, i - 15), reverse=True))) for handle in (topic, beside.topic("t"))]
            if i % 30 == 0:
                log.seal()
            if i % 4 == 0:
                for taken, reader in slow:
                    taken += [record.payload for record in islice(reader, 1)]
        for number, (taken, reader) in enumerate(slow):
            taken += [record.payload for record in reader]
            end = 20 * (number // 4) + 20
            span = expected[end - 16 : end]
            assert taken == (span[::-1] if number % 4 > 1 else span)


def test_a_follower_in_another_process_gets_every_record(hasty, tmp_path):
    """While the owner appends, folds, seals, and uses its files anew."""
    count = 400
    with opened(tmp_path / "log") as log:
        payloads = numbered(count)
        log.topic("t").append(next(payloads))
        command = [sys.executable, "-c", READER, str(log.path), str(count)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "reading\n"
            for i, payload in enumerate(payloads):
                log.topic("t").append(payload)
                if i % 15 == 14:
                    log.seal()
            assert reader.stdout.readline() == "all\n"


def append_to_files(log: Log, payloads: Iterable[bytes]) -> None:
    """Append with the next file always ready in time: no group goes through the database."""
    for payload in payloads:
        log.topic("t").append(payload)
        files = log._journal._backend.filed.writer
        assert files is not None
        if files._preparing is not None:
            files._preparing.join()


@pytest.mark.parametrize("nth", [1, 2])
def test_a_reader_whose_snapshot_is_older_than_the_files_sees_no_damage(nth, tmp_path, monkeypatch):
    """The owner seals, and gives files away, between the reader's look at the database and its look at the files."""
    monkeypatch.setattr(writer, "_LATE_ENTRIES_MAX", 10_000)
    looks, look = [], GroupFileStore._look

    def late_look(self: GroupFileStore, connection: apsw.Connection, *durable: tuple[int, int]) -> Any:
        looks.append(connection.execute("SELECT groups FROM log").fetchall())  # the snapshot is taken
        if len(looks) == nth:
            log.seal()
            log.topic("t").append(b"behind")
        return look(self, connection, *durable)

    with opened(tmp_path / "log") as log:
        append_to_files(log, numbered(60))
        monkeypatch.setattr(GroupFileStore, "_look", late_look)
        with opened(tmp_path / "log", read_only=True) as beside:
            assert len(looks) >= nth
            assert beside.problems == ()
            assert payloads(beside) == [*numbered(60), b"behind"]


def test_a_reader_takes_nothing_out_of_a_file_that_was_used_anew(tmp_path, monkeypatch):
    """It knows the place of a body, and the file has something else there when it comes."""
    expected = list(numbered(60))
    with opened(tmp_path / "log") as log, opened_beside(log) as beside:
        append_to_files(log, expected)
        assert payloads(beside) == expected  # it has all files open
        files = beside._journal._backend.filed.files
        body, places = files.body, []

        def late_body(*place: int) -> bytes | None:
            if not places:
                log.seal()
                append_to_files(log, [b"anew %d" % i + bytes(2500) for i in range(80)])
            places.append(place)
            return body(*place)

        monkeypatch.setattr(files, "body", late_body)
        assert payloads(beside)[:60] == expected
        assert places


def test_a_reader_that_looked_just_before_two_groups_came_sees_no_damage(tmp_path, monkeypatch):
    """It missed the first and then found the second: that is no hole."""
    from holdfast.journal.groups.group_scan import GroupScan

    with opened(tmp_path / "log") as log, opened_beside(log) as beside:
        log.topic("t").append(b"0")
        assert payloads(beside) == [b"0"]
        scan = beside._journal._backend.filed._scan
        scan._clean.clear()
        look = GroupScan._is_damaged

        def two_come_first(*args: Any) -> bool:
            monkeypatch.setattr(GroupScan, "_is_damaged", look)
            log.topic("t").append(b"1")
            log.topic("t").append(b"2")
            return look(*args)

        monkeypatch.setattr(GroupScan, "_is_damaged", two_come_first)
        assert payloads(beside) == [b"0", b"1", b"2"]
        log.topic("t").append(b"3")
        assert payloads(beside) == [b"0", b"1", b"2", b"3"]


# -- files come and go ------------------------------------------------------------------------------------


def test_the_number_of_files_stays_bounded(tmp_path):
    """Sealing gives them back; an idle partition with one record keeps the one that it lies in, and no other."""
    most = 0
    with opened(tmp_path / "log") as log:
        log.topic("idle").append(b"alone")
        for i, payload in enumerate(numbered(400)):
            log.topic("t").append(payload)
            if i % 20 == 19:
                log.seal("t")
                most = max(most, len(filed(log.path)))
        copy = crashed(log, tmp_path / "copy")
    assert most <= 6
    with opened(copy) as log:
        assert payloads(log, "idle") == [b"alone"]
        assert payloads(log) == list(numbered(400))


def test_idle_partitions_keep_no_files(tmp_path):
    """A little of each of them in every file: it moves into the database, and files come back all the same."""
    settings = Settings.from_mapping(
        {
            "journal": {"group_file_bytes": "64KiB"},
            "segments": {"rows_max": 40, "idle_ratio": 0, "seal_on_close": False},
        }
    )
    with opened(tmp_path / "log", settings=settings) as log:
        for i, payload in enumerate(numbered(600, size=1000)):
            log.topic("t").append(payload)
            if i % 10 == 0:
                log.topic(f"idle{i % 30}").append(b"%d" % i)
        log.seal("t")
        assert len(filed(log.path)) <= 10, "of some 15 that were written"
        copy = crashed(log, tmp_path / "copy")
        assert sum(len(payloads(log, f"idle{n}")) for n in (0, 10, 20)) == 60
    with opened(copy) as log:
        assert [int(p) for n in (0, 10, 20) for p in payloads(log, f"idle{n}")] == [
            i for n in (0, 10, 20) for i in range(n, 600, 30)
        ]
        assert payloads(log) == list(numbered(600, size=1000))


def test_a_reader_finds_a_body_that_moved_meanwhile(tmp_path, monkeypatch):
    """It was in a file when the reader looked, and in the database when it came for it."""
    body, gone = GroupFiles.body, []

    def gone_once(files: GroupFiles, *place: int) -> bytes | None:
        gone.append(place)
        return None if gone.count(place) == 1 else body(files, *place)

    with opened(tmp_path / "log") as log:
        for payload in PAYLOADS:
            log.topic("t").append(payload)
        monkeypatch.setattr(GroupFiles, "body", gone_once)
        assert payloads(log) == PAYLOADS
        monkeypatch.undo()


def test_what_an_owner_finds_is_durable_before_it_is_believed(tmp_path, monkeypatch):
    """A group that was written and not synced when its owner was killed is made durable before it is shown."""
    (tmp_path / "disk").mkdir()
    path = tmp_path / "disk" / "log"
    with FaultyDisk(tmp_path / "disk") as disk_:
        killed = opened(path)
        killed.topic("t").append(b"synced")
        monkeypatch.setattr(GroupFile, "sync", lambda file: None)
        killed.topic("t").append(b"not synced")
        monkeypatch.undo()
        (path / "LOCK").unlink()
        with opened(path) as log:
            assert payloads(log) == [b"synced", b"not synced"]
            states = list(disk_.snapshot().states(limit=12))
        with pytest.raises(Closed):
            killed.topic("t").append(b"displaced")
        with pytest.raises(Closed):
            killed.close()
    for number, state in enumerate(states):
        copy = state.materialise(tmp_path / f"cut-{number}")
        with opened(copy / "log") as log:
            assert payloads(log) == [b"synced", b"not synced"], state.describe()


def test_a_refused_group_does_not_come_back(tmp_path):
    """Of its frame everything but the last byte was written before the disk was full: refused is refused."""
    with opened(tmp_path / "log") as log:
        topic = log.topic("t")
        topic.append(b"before")
        write = disk.write_at

        def all_but_a_byte(descriptor: int, buffers: Any, position: int) -> None:
            write(descriptor, [*buffers[:-1], buffers[-1][:-1]], position)
            raise OSError(errno.ENOSPC, "no space left")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(disk, "write_at", all_but_a_byte)
            with pytest.raises(Unavailable, match="full"):
                topic.append(b"refused")
        copy = crashed(log, tmp_path / "copy")
        assert topic.append(b"after").offset == 1
    with opened(copy) as log:
        assert payloads(log) == [b"before"]


def test_a_small_log_is_one_database_after_a_good_end(tmp_path):
    """No file of groups is left, and a copy of durable.db alone (with FORMAT) has everything."""
    with opened(tmp_path / "log") as log:
        for payload in PAYLOADS:
            log.topic("t").append(payload)
    assert filed(tmp_path / "log") == []
    shutil.rmtree(tmp_path / "log" / "groups")
    with opened(tmp_path / "log", read_only=True) as log:
        assert payloads(log) == PAYLOADS


def test_a_long_tail_stays_in_files_after_a_good_end(tmp_path):
    """What is more than a megabyte is not copied; the next owner reads it there, seals it, and gives the files back."""
    expected = [b"%d" % i + bytes(30_000) for i in range(180)]
    settings = Settings.from_mapping({"segments": {"seal_on_close": False}})
    for turn in range(3):
        with holdfast.open(tmp_path / "log", settings=settings) as log:
            for payload in expected[turn * 60 :][:60]:
                log.topic("t").append(payload)
        with holdfast.open(tmp_path / "log", read_only=True) as log:
            assert payloads(log) == expected[: turn * 60 + 60]
        assert filed(tmp_path / "log")
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        assert payloads(log) == expected
        log.seal()
        assert payloads(log) == expected
    assert filed(tmp_path / "log") == []


# -- a displaced owner ------------------------------------------------------------------------------------


def killed_copy(path: Path, target: Path) -> list[bytes]:
    shutil.copytree(path, target, ignore=shutil.ignore_patterns("SOCKET"))
    with opened(target) as log:
        return payloads(log)


@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_displaced_owner_is_refused_at_its_first_append_and_harms_nobody(before, tmp_path):
    """Whether it had not begun a file, had one, or has the next one prepared: what its successor acknowledged stays."""
    path, big = tmp_path / "log", "x" * 2000
    with owner(path) as old:
        assert [old.append(f"{i}{big}") for i in range(before)] == [f"stored {i}" for i in range(before)]
        (path / "LOCK").unlink()
        with owner(path) as new:
            stored = [new.append(f"new {i}") for i in range(3)]
            assert stored == [f"stored {before + i}" for i in range(3)]
            assert old.append("stale").startswith("refused Closed fenced")
            assert old.end() == "closed fenced"
            assert new.append("new 3") == f"stored {before + 3}"
            new.kill()
        found = killed_copy(path, tmp_path / "copy")
    assert found == [f"{i}{big}".encode() for i in range(before)] + [b"new %d" % i for i in range(4)]


def test_a_displaced_owner_that_was_idle_takes_no_file_with_it(tmp_path):
    """It closes in good order, with nothing of its own: the files are its successor's, and stay."""
    path = tmp_path / "log"
    with owner(path) as old:
        (path / "LOCK").unlink()
        with owner(path) as new:
            assert [new.append(f"new {i}") for i in range(3)] == [f"stored {i}" for i in range(3)]
            old.end()
            assert len(filed(path)) == 1
            new.kill()
        assert killed_copy(path, tmp_path / "copy") == [b"new 0", b"new 1", b"new 2"]


def test_a_displaced_owner_makes_no_file_in_the_place_of_its_successors(tmp_path):
    """Both would take the same number: the one that is there is never emptied or replaced."""
    old = opened(tmp_path / "log")
    for i in range(12):
        old.topic("t").append(b"old %d" % i + bytes(2000))  # more than half of a file: the next one is due
    files = old._journal._backend.filed.writer
    assert files is not None
    while (spare := files._spare) is None:
        old.topic("t").append(bytes(2000))
    assert files._preparing is not None
    files._preparing.join()
    (tmp_path / "log" / "groups" / spare.path.name).unlink()  # as if it had not come to that yet
    files._spare, files._next = None, spare.number
    shutil.rmtree(tmp_path / "log" / "LOCK", ignore_errors=True)
    (tmp_path / "log" / "LOCK").unlink()
    with owner(tmp_path / "log") as new:
        assert new.append("mine").startswith("stored")
        with pytest.raises(Closed, match="taken"):
            old.topic("t").append(b"stale")
        if files._preparing is not None:
            files._preparing.join()
        new.kill()
    assert killed_copy(tmp_path / "log", tmp_path / "copy")[-1] == b"mine"
    with pytest.raises(Closed):
        old.close()


def test_a_displaced_owner_begins_no_other_file(tmp_path):
    """The one that it writes is full, and its next one was prepared before: nobody could mark that one."""
    old = opened(tmp_path / "log")
    files = old._journal._backend.filed.writer
    assert files is not None
    while files._spare is None:
        old.topic("t").append(bytes(2000))
    count = len(payloads(old))
    (tmp_path / "log" / "LOCK").unlink()
    with opened(tmp_path / "log") as new:
        with pytest.raises(Closed, match="taken"):
            old.topic("t").append(bytes(40_000))
        assert new.topic("t").append(b"mine").offset == count
    with pytest.raises(Closed):
        old.close()


def test_a_takeover_between_the_look_and_the_write_is_noticed_after_the_sync(tmp_path, monkeypatch):
    """The successor did not see the group: so it is not acknowledged."""
    old = opened(tmp_path / "log")
    old.topic("t").append(b"seen")
    write, successors = GroupFile.write, []

    def late_write(self: GroupFile, *args: Any) -> None:
        if not successors:
            (tmp_path / "log" / "LOCK").unlink()
            successors.append(opened(tmp_path / "log"))
        write(self, *args)

    monkeypatch.setattr(GroupFile, "write", late_write)
    with pytest.raises((OutcomeUnknown, Closed)):
        old.topic("t").append(b"unseen")
    with successors[0] as new:
        assert new.topic("t").append(b"mine").offset == 1
        assert payloads(new) == [b"seen", b"mine"]
    with pytest.raises(Closed):
        old.close()


# -- a disk that fails ------------------------------------------------------------------------------------


def test_a_failed_sync_of_a_file_stops_the_writer(tmp_path):
    """The outcome is unknown, then everything is refused; nothing is written any more."""
    (tmp_path / "disk").mkdir()
    with FaultyDisk(tmp_path / "disk") as faulty:
        log = opened(tmp_path / "disk" / "log")
        log.topic("t").append(b"safe")
        faulty.arm(Fault(1, "fsync"))
        with pytest.raises(OutcomeUnknown):
            log.topic("t").append(b"perhaps")
        assert [step.name for step in faulty.failed] == [f"log/groups/{1:020d}"]
        faulty.disarm()
        steps = faulty.steps
        with pytest.raises(Closed) as caught:
            log.topic("t").append(b"no")
        assert caught.value.reason == "poisoned"
        with pytest.raises(Closed):
            log.close()
        assert [step for step in faulty.log[steps:] if step.op in ("write", "sync")] == []


@pytest.mark.parametrize("nth", [1, 3])
def test_appends_go_on_where_no_file_can_be_made(nth, tmp_path, monkeypatch):
    """The first one or a later one: groups go through the database, and half a file takes no room from it."""
    synced, sync_directory = [], disk.sync_directory

    def full(path: Path) -> None:
        if path.name == "groups":  # the last step of making one
            synced.append(set(filed(path.parent)))
            if len(synced) == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
        sync_directory(path)

    monkeypatch.setattr(disk, "sync_directory", full)
    with opened(tmp_path / "log") as log:
        for i, payload in enumerate(numbered(90)):
            assert log.topic("t").append(payload).offset == i
        assert len(synced) == nth
        assert set(filed(log.path)) <= synced[nth - 2 if nth > 1 else 0]
        assert len(filed(log.path)) == nth - 1
        assert payloads(log) == list(numbered(90))
        copy = crashed(log, tmp_path / "copy")
    with opened(copy) as log:
        assert payloads(log) == list(numbered(90))


def test_a_full_disk_keeps_groups_in_files_and_appends_go_on(hasty, tmp_path):
    """The database has no room for what is in files alone: that waits; so it does where the log is closed then."""
    (tmp_path / "disk").mkdir()
    with FaultyDisk(tmp_path / "disk") as faulty:
        log = opened(tmp_path / "disk" / "log")
        log.topic("t").append(b"0")
        for i in range(1, 4):
            log.topic("t").append(b"%d" % i)
        full = Fault(1, "enospc", op="write", sticky=True)

        def strike(number: int, op: str, name: str) -> None:
            faulty.arm(full) if "durable.db" in name else faulty.disarm()

        faulty.on_step = strike
        for i in range(4, 20):
            assert log.topic("t").append(b"%d" % i).offset == i
        assert payloads(log) == [b"%d" % i for i in range(20)]
        copy = crashed(log, tmp_path / "copy")
        with pytest.raises(Unavailable, match="while closing"):  # SQLite had no room for its last checkpoint
            log.close()
        faulty.on_step = None
        faulty.disarm()
        for path in (copy, tmp_path / "disk" / "log"):
            with opened(path) as again:
                assert payloads(again) == [b"%d" % i for i in range(20)]


class Hurry(threading.Event):
    """Comes after so many pauses, none of which takes any time."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def wait(self, timeout: float | None = None) -> bool:
        self.left -= 1
        if self.left <= 0:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(
    ("size", "after"), [(2**20 + 512, 99), (2**20 + 512, 2), (2**18, 99), (3 * 2**18, 99), (512, 1)]
)
def test_a_file_is_prepared_piece_by_piece_until_there_is_a_hurry(size, after, tmp_path, monkeypatch):
    """Other syncs never wait behind more than one piece; and it is whole, wherever the hurry came."""
    unsynced, most, durable = [0], [0], [False]

    class Watched:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def pwritev(self, descriptor: int, buffers: list[bytes], position: int) -> int:
            unsynced[0] += sum(map(len, buffers))
            most[0], durable[0] = max(most[0], unsynced[0]), False
            return os.pwritev(descriptor, buffers, position)

        def fdatasync(self, descriptor: int) -> None:
            unsynced[0], durable[0] = 0, True
            os.fdatasync(descriptor)

    monkeypatch.setattr(disk, "syscalls", Watched())
    hurry = Hurry(after)
    file = GroupFile.create(tmp_path / "1", 1, size, hurry)
    assert durable[0]
    assert file.size == size
    assert (tmp_path / "1").read_bytes() == bytes(size)
    assert hurry.is_set() or most[0] <= 2**18


def test_the_next_file_is_prepared_slowly_until_half_of_this_one_is_used(tmp_path, monkeypatch):
    create, begun, hurries = GroupFile.create, threading.Event(), []

    def waiting(path: Path, number: int, size: int, hurry: threading.Event | None = None) -> GroupFile:
        if hurry is not None:
            hurries.append(hurry)
            begun.set()
            hurry.wait(30)
        return create(path, number, size, hurry)

    monkeypatch.setattr(GroupFile, "create", waiting)
    settings = Settings.from_mapping({"journal": {"group_file_bytes": "1MiB"}, "segments": {"seal_on_close": False}})
    with opened(tmp_path / "log", settings=settings) as log:
        sent = [b"%d" % i + bytes(2000) for i in range(30)]
        for payload in sent:
            log.topic("t").append(payload)
            used = sum(size for _, size in frames(filed(log.path)[0]))
            if used > 40 * 2**10:
                assert begun.wait(30)
            if hurries and used < 60 * 2**10:
                assert not hurries[0].is_set()
        assert 70 * 2**10 < used < 100 * 2**10  # of 128 KiB
        assert hurries[0].is_set()
        assert payloads(log) == sent


def test_a_group_larger_than_any_file_goes_through_the_database(tmp_path):
    """In its place among the others."""
    with opened(tmp_path / "log") as log:
        for i in range(6):
            log.topic("t").append(b"%d" % i * (100_000 if i % 2 else 1))
        copy = crashed(log, tmp_path / "copy")
    with opened(copy) as log:
        assert [len(payload) for payload in payloads(log)] == [1, 100_000] * 3
