"""Sealing in a child process: the same files as from the thread, and nothing lost however the child ends."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast import Keyring, Settings, Unavailable, disk
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.segments.sealing import seal_process
from holdfast.testing import Fault, FaultyDisk, ManualClock
from tests.segments.test_roller import eventually
from tests.unit.test_segment_key import Rot13

pytestmark = pytest.mark.disk

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("colour", pa.dictionary(pa.int32(), pa.string())),
        pa.field("price", pa.decimal128(9, 2)),
    ]
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """However small a tail is, it is worth a process."""
    monkeypatch.setattr(seal_process, "START_BYTES_MIN", 0)


def in_process(**changes):
    return {"seal_on_close": False, "age_max_ms": 3_600_000, "seal_in": "process", **changes}


def children(parent: int | None = None) -> set[int]:
    """The sealing processes of this process, or of another one, that are alive."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = [b"", b"", *(path / "cmdline").read_bytes().split(b"\0")]
            state, of = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        is_ours = b"%d" % (parent or os.getpid()) in (words[-2], of.encode())
        if b"holdfast.segments.sealing.seal_child" in words and state not in "ZX" and is_ours:
            found.add(int(path.name))
    return found


def everything(log):
    return [*log.topic("raw").read()], [*log.topic("typed", schema="latest").read()]


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("segments/topics/*/*/segments/*"))


def fill(log, rounds=40, seed=1):
    """Raw records with and without keys, kinds, headers and times; typed rows; in two partitions."""
    chance = random.Random(seed)
    raw, typed = log.topic("raw", partitions=2), log.topic("typed", schema=SCHEMA, key="name")
    for number in range(rounds):
        raw.append(chance.randbytes(chance.randrange(400)), key=b"k%d" % (number % 9), kind="made", headers={"a": b"b"})
        raw.append_batch([chance.randbytes(50) for _ in range(30)])
        typed.append(
            [
                {"id": i, "name": chance.choice([None, f"n{i}"]), "tags": ["x", None], "colour": "red", "price": None}
                for i in range(20)
            ]
        )
    return raw, typed


# -- the same files ----------------------------------------------------------------------------------------


def test_the_same_bytes_as_from_the_thread(tmp_path, open_log):
    """Two copies of one log, sealed both ways: equal files, indexes of keys, digests and manifests."""
    log = open_log("thread")
    fill(log)
    log.close()
    shutil.copytree(tmp_path / "thread", tmp_path / "process")
    shape = {"rows_max": 300, "row_group_rows": 100}
    with_thread = open_log("thread", segments={**in_process(**shape), "seal_in": "thread"})
    with_process = open_log("process", segments=in_process(**shape))
    for each in (with_thread, with_process):
        each.seal(timeout=60)
    ours, theirs = files(tmp_path / "thread"), files(tmp_path / "process")
    assert [path.name for path in ours] == [path.name for path in theirs]  # names have the digests in them
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]
    assert (
        with_process.stats().segments.seals_in_process_total == len([p for p in theirs if p.suffix == ".parquet"]) > 6
    )
    assert with_process.stats().segments.seal_in == "process"
    assert with_thread.stats().segments.seals_in_process_total == 0
    assert with_thread.stats().segments.seal_in == "thread"


def test_an_encrypted_log_holds_the_same(tmp_path, open_log, keyring):
    """Entries of several key epochs, one of them under another master key: all in one segment, as from the thread."""
    log = open_log(keyring=keyring)
    fill(log, rounds=5)
    log.close()
    log = open_log(keyring=keyring)  # which begins a key epoch
    fill(log, rounds=5, seed=2)
    newer = keyring.rotated("k2")
    log.rotate_key(newer)
    fill(log, rounds=5, seed=3)
    before = everything(log)
    log.close()
    log = open_log(keyring=newer, segments=in_process(block_rows=64, row_group_rows=100))
    log.seal(timeout=60)
    assert log.stats().segments.seals_in_process_total == 3
    assert everything(log) == before
    assert log.reconcile(deep=True).clean
    assert len([*log.topic("raw").read(key=b"k3")]) == 3
    for path in (tmp_path / "log").glob("segments/topics/*/*/segments/*.parquet"):
        with SegmentReader(path, None, None, log._journal.segment_keys) as reader:
            assert reader.facts.key_id == "k2"
            assert reader.facts.content


def test_master_keys_stay_here(open_log, monkeypatch):
    """Neither arguments nor the environment of the child hold a secret."""
    monkeypatch.setenv("HOLDFAST_KEYS", "k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=")
    monkeypatch.setenv("MY_PASSWORD", "hunter2")
    log = open_log(keyring=Keyring.from_env("HOLDFAST_KEYS"), segments=in_process())
    log.topic("t").append(b"x")
    log.seal(timeout=60)
    (pid,) = children()
    seen = Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"hunter2" not in seen
    assert b"QUJD" not in seen
    assert len(sockets(pid)) == 1
    assert {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()} == {"/dev/null", *sockets(pid)}


# -- where no process can be -------------------------------------------------------------------------------


def test_ones_own_cipher_stays_in_the_thread_and_that_is_said_once(open_log, caplog):
    log = open_log(cipher=Rot13(), segments=in_process())
    with caplog.at_level(logging.WARNING, "holdfast.segments"):
        for payload in (b"one", b"two"):
            log.topic("t").append(payload)
            log.seal(timeout=60)
    assert [r.action for r in caplog.records] == ["seal_process_unavailable"]
    assert log.stats().segments.seal_in == "thread"
    assert [r.payload for r in log.topic("t").read()] == [b"one", b"two"]
    assert not children()


@pytest.mark.parametrize("executable", ["", "/opt/app/bin/server", "/usr/sbin/uwsgi"])
def test_an_executable_that_is_no_python_is_not_started(open_log, caplog, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    with caplog.at_level(logging.WARNING, "holdfast.segments"):
        log.seal(timeout=60)
    assert [r.action for r in caplog.records] == ["seal_process_unavailable"]
    assert log.stats().segments.seals_total == 1


def test_a_child_that_does_not_start_costs_nothing(open_log, caplog, monkeypatch):
    """Another program of that name, and one that cannot be run at all."""
    log = open_log(segments=in_process())
    for command in ("/bin/true", "/nowhere/python"):
        monkeypatch.setattr(seal_process, "unable", lambda: None)
        monkeypatch.setattr(sys, "executable", command)
        log._maintenance._roller._sealer._process._resume = 0
        log.topic("t").append(b"x")
        with caplog.at_level(logging.WARNING, "holdfast.segments"):
            log.seal(timeout=60)
    assert [r.action for r in caplog.records] == ["seal_process_failed"] * 2
    stats = log.stats().segments
    assert (stats.seals_total, stats.seal_process_failures_total, stats.seal_failures_total) == (2, 2, 0)


def test_a_small_tail_starts_no_process(open_log, monkeypatch):
    monkeypatch.setattr(seal_process, "START_BYTES_MIN", 2**20)
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    log.seal(timeout=60)
    assert not children()
    log.topic("t").append_batch([b"x" * 2**10] * 2**11)
    log.seal(timeout=60)
    log.topic("t").append(b"small, and now there is one")
    log.seal(timeout=60)
    assert log.stats().segments.seals_in_process_total == 2


# -- a child that fails ------------------------------------------------------------------------------------


class Slow:
    """Entries that go to the child one frame at a time, when they are told to."""

    def __init__(self, monkeypatch):
        self.reached, self.go_on = threading.Event(), threading.Event()
        send = seal_process.SealProcess._send

        def slow(process, kind, *parts, **options):
            send(process, kind, *parts, **options)
            if kind == 4:  # entries
                self.reached.set()
                self.go_on.wait(60)

        monkeypatch.setattr(seal_process.SealProcess, "_send", slow)


@pytest.fixture
def slow(monkeypatch):
    found = Slow(monkeypatch)
    yield found
    found.go_on.set()


def test_a_child_killed_in_the_middle_is_followed_by_the_thread(open_log, slow, caplog, tmp_path):
    log = open_log(segments=in_process())
    topic = log.topic("t")
    topic.append_batch([b"%d" % i for i in range(1000)])
    with caplog.at_level(logging.WARNING, "holdfast.segments"):
        asked = threading.Thread(target=partial(log.seal, timeout=60))
        asked.start()
        assert slow.reached.wait(60)
        (pid,) = children()
        os.kill(pid, signal.SIGKILL)
        slow.go_on.set()
        asked.join()
    assert [r.action for r in caplog.records] == ["seal_process_failed"]
    stats = log.stats().segments
    assert (stats.seals_total, stats.seals_in_process_total, stats.seal_failures_total) == (1, 0, 0)
    assert (stats.seal_process_failures_total, stats.seal_in) == (1, "thread")
    assert [r.payload for r in topic.read()] == [b"%d" % i for i in range(1000)]
    assert not list((tmp_path / "log").rglob("*.parquet.tmp"))
    assert not children()


def test_another_child_comes_after_a_pause(tmp_path, caplog):
    clock = ManualClock()
    settings = Settings.from_mapping({"segments": in_process()})
    with holdfast.open(tmp_path / "log", settings=settings, clock=clock) as log:
        topic = log.topic("t")
        ways = []
        for wait in (0.0, 0.0, 1.1, 0.0, 1.5, 1.0):
            clock.advance(wait)
            topic.append(b"x")
            if len(ways) in (1, 3):  # it dies between two seals
                (pid,) = children()
                os.kill(pid, signal.SIGKILL)
                eventually(lambda: not children())
            log.seal(timeout=60)
            ways.append(log.stats().segments.seal_in)
    assert ways == ["process", "thread", "process", "thread", "process", "process"]


@pytest.mark.parametrize("sig", [signal.SIGSTOP], ids=["hangs"])
def test_a_child_that_hangs_is_given_up(open_log, monkeypatch, sig):
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    log.seal(timeout=60)
    (pid,) = children()
    monkeypatch.setattr(seal_process, "_STALL_S", 0.3)  # not before: on a busy machine it takes longer to start
    os.kill(pid, sig)
    log.topic("t").append(b"y")
    log.seal(timeout=60)
    assert log.stats().segments.seal_in == "thread"
    assert not children()


@pytest.mark.parametrize(
    "answer",
    [
        b"\x07" + (3).to_bytes(8, "little") + b"\xc1\xc1\xc1",  # done, with what is no fact
        b"\x63" + (0).to_bytes(8, "little"),  # of no kind
        b"\x07" + (2**62).to_bytes(8, "little"),  # of a length that nobody has memory for
        b"\x07" + bytes(8),
        b"garbage without an end" * 9,
        b"",
    ],
)
def test_nonsense_from_the_child_is_not_believed(open_log, tmp_path, monkeypatch, answer):
    program = (
        "import socket, sys, holdfast; s = socket.socket(fileno=int(sys.argv[2]));"
        f"s.sendall(bytes([1]) + len(holdfast.__version__).to_bytes(8, 'little') + holdfast.__version__.encode());"
        f"s.recv(10); s.sendall({answer!r}); s.shutdown(1); [None for _ in iter(lambda: s.recv(9999), b'')]"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **options: popen([sys.executable, "-c", program, *command[3:]], **options)
    )
    log = open_log(segments=in_process())
    log.topic("t").append_batch([b"x"] * 10)
    log.seal(timeout=60)
    assert log.stats().segments.seal_process_failures_total == 1
    assert [r.payload for r in log.topic("t").read()] == [b"x"] * 10
    assert not list((tmp_path / "log").rglob("*.parquet.tmp"))


def test_facts_about_another_file_are_not_believed(open_log, monkeypatch):
    """A child that says how many rows there are, and wrote others."""
    monkeypatch.setattr(seal_process, "_MODULE", "tests.segments.lying_seal_child")
    log = open_log(segments=in_process())
    log.topic("t").append_batch([b"x"] * 10)
    log.seal(timeout=60)
    stats = log.stats().segments
    assert (stats.seal_process_failures_total, stats.seal_in) == (1, "thread")
    assert [r.payload for r in log.topic("t").read()] == [b"x"] * 10


def test_a_damaged_entry_is_corrupt_as_from_the_thread(open_log, tmp_path, caplog):
    """The child refuses it, the thread says what it is; the child goes on with others."""
    log = open_log(segments=in_process(), journal={"group_file_bytes": 0})
    for name in ("bad", "good"):
        log.topic(name).append(b"payload of " + name.encode())
    damage(log, "bad")
    with pytest.raises(holdfast.Corrupt, match="digest"):
        log.seal(timeout=60)
    (pid,) = children()
    log.topic("good").append(b"more")
    log.seal("good", timeout=60)
    assert log.stats().segments.seals_in_process_total >= 1
    assert children() == {pid}


def damage(log, topic):
    """Change a byte of the body of a topic's entry in the database."""
    (partition,) = (p for p in log._journal.partitions.values() if p.topic == topic)
    import apsw

    with apsw.Connection(str(log._journal.path)) as connection:
        connection.setbusytimeout(5000)
        connection.execute(
            "UPDATE entries SET body = CAST(body || x'00' AS BLOB) WHERE partition_id = ?", (partition.id,)
        )


# -- the disk ----------------------------------------------------------------------------------------------


def test_the_file_is_durable_before_it_has_its_name(tmp_path):
    """The sync is the parent's, of the file that the child wrote."""
    settings = Settings.from_mapping({"segments": in_process(), "disk": {"free_bytes_min": 0}})
    faulty = FaultyDisk(tmp_path / "log", record=False)
    with faulty, holdfast.open(tmp_path / "log", settings=settings) as log:
        log.topic("t").append_batch([b"%d" % i for i in range(100)])
        start = faulty.steps
        log.seal(timeout=60)
        steps = [op for _, op, name in faulty.log[start:] if ".parquet" in name]
    assert steps == ["open", "sync", "rename"]  # and no write: that was the child


def test_whichever_step_of_the_disk_fails_nothing_is_lost(tmp_path):
    """Every step that the parent makes beside the child, in turn."""
    settings = Settings.from_mapping({"segments": in_process(), "disk": {"free_bytes_min": 0}})
    failed = []
    with FaultyDisk(tmp_path / "log", record=False) as faulty:
        log = holdfast.open(tmp_path / "log", settings=settings)
        log.topic("t").append(b"0")
        log.seal(timeout=60)
        steps = [(step, op) for step in range(1, 15) for op in ("open", "sync")]
        for nth, (step, op) in enumerate(steps, 1):
            before = log.marks("t")[0]
            log.topic("t").append(b"%d" % nth)
            faulty.arm(Fault(step, "eio", op=op))
            try:
                log.seal(timeout=60)
            except holdfast.HoldfastError:
                failed += [name for _, _, name in faulty.failed[-1:]]
                assert log.marks("t")[0].sealed >= before.sealed
            faulty.disarm()
            if log._journal.end is not None:  # a failed sync of the database: the log is opened again
                with suppress(holdfast.Closed):
                    log.close()
                log = holdfast.open(tmp_path / "log", settings=settings)
            assert [r.payload for r in log.topic("t").read()][: nth + 1] == [b"%d" % i for i in range(nth + 1)]
        log.seal(timeout=60)
        assert log.marks("t")[0].sealed == log.marks("t")[0].durable
        log.close()
    assert any(".parquet" in name for name in failed), failed
    assert not list((tmp_path / "log").rglob("*.parquet.tmp"))


def test_a_full_disk_is_told_as_one(open_log, monkeypatch):
    """The child meets the error; the parent raises it, without a second attempt."""
    monkeypatch.setattr(seal_process, "_MODULE", "tests.segments.full_seal_child")
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    with pytest.raises(Unavailable, match="No space left") as caught:
        log.seal(timeout=60)
    assert "free space" in caught.value.hint
    assert log.stats().segments.seal_process_failures_total == 0
    monkeypatch.undo()
    assert [r.payload for r in log.topic("t").read()] == [b"x"]


def test_a_failed_sync_of_what_the_child_wrote_fails_the_seal(open_log, monkeypatch):
    failures = iter([OSError(5, "Input/output error")])
    finish = disk.NewFile.finish

    def fail(self):
        for error in failures:
            raise error
        finish(self)

    monkeypatch.setattr(disk.NewFile, "finish", fail)
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    with pytest.raises(Unavailable, match="Input/output"):
        log.seal(timeout=60)
    log.seal(timeout=60)
    assert log.stats().segments.seals_in_process_total == 1 + 1  # the child did its part both times


# -- the life of the child ---------------------------------------------------------------------------------


def test_closing_ends_it(open_log):
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    log.seal(timeout=60)
    assert len(children()) == 1
    log.close()
    assert not children()


def test_closing_in_the_middle_of_a_seal_gives_it_up(tmp_path, slow):
    """Bounded, nothing lost, nothing left."""
    settings = Settings.from_mapping({"segments": in_process(), "journal": {"close_timeout_ms": 500}})
    log = holdfast.open(tmp_path / "log", settings=settings)
    log.topic("t").append_batch([b"x"] * 1000)
    log._maintenance.seal_soon(list(log._journal.partitions.values()))
    assert slow.reached.wait(60)
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    threading.Timer(0.3, slow.go_on.set).start()
    log.close()
    assert time.monotonic() - began < 30
    assert not children()
    with holdfast.open(tmp_path / "log") as log:
        assert len([*log.topic("t").read()]) == 1000
    assert not list((tmp_path / "log").rglob("*.parquet.tmp"))


def test_two_logs_have_a_child_each(open_log):
    logs = [open_log(name, segments=in_process()) for name in ("one", "two")]
    for number in range(3):
        for log in logs:
            log.topic("t").append(b"%d" % number)
            log.seal(timeout=60)
    assert len(children()) == 2
    logs[0].close()
    assert len(children()) == 1
    logs[1].topic("t").append(b"more")
    logs[1].seal(timeout=60)
    assert logs[1].stats().segments.seals_in_process_total == 4


PROGRAM = """
import os, signal, sys, time, holdfast
from holdfast import Settings
from holdfast.segments.sealing import seal_process
seal_process.START_BYTES_MIN = 0
settings = Settings.from_mapping({"segments": {"seal_in": "process", "seal_on_close": True}})
log = holdfast.open(sys.argv[1], settings=settings)
log.topic("t").append(b"first")
log.seal(timeout=60)
"""


def start(tmp_path, rest):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + rest, str(tmp_path / "log")], stdout=subprocess.PIPE, process_group=0
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    return program


def test_no_orphan_after_kill_9_of_the_parent(tmp_path):
    program = start(tmp_path, "print('ready', flush=True); time.sleep(600)")
    assert len(children(program.pid)) == 1
    program.kill()
    program.communicate()
    eventually(lambda: not children(program.pid))
    with holdfast.open(tmp_path / "log") as log:
        assert [r.payload for r in log.topic("t").read()] == [b"first"]


def test_no_orphan_though_a_fork_of_the_parent_lives_on(tmp_path):
    """The fork lets go of the socket: it is not its own."""
    rest = "pid = os.fork()\nif pid == 0: time.sleep(600)\nprint('ready', pid, flush=True); time.sleep(600)"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + rest, str(tmp_path / "log")], stdout=subprocess.PIPE, process_group=0
    )
    assert program.stdout is not None
    fork = int(program.stdout.readline().split()[1])
    try:
        assert len(children(program.pid)) == 1
        eventually(lambda: not sockets(fork))
    finally:
        program.kill()
        eventually(lambda: not children(program.pid))
        os.kill(fork, signal.SIGKILL)
        program.communicate()


def sockets(pid):
    held = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed a moment ago
            held.append(os.readlink(path))
    return [name for name in held if name.startswith("socket:")]


def test_ctrl_c_is_the_parents_to_answer(tmp_path):
    """The whole group gets the signal; the parent catches it, goes on, and seals in the same child."""
    rest = """
(pid,) = [seal_process_pid for seal_process_pid in [log._maintenance._roller._sealer._process.pid]]
try:
    print('ready', flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    log.topic("t").append(b"second")
    log.seal(timeout=60)
    stats = log.stats().segments
    assert log._maintenance._roller._sealer._process.pid == pid
    print(stats.seals_in_process_total, stats.seal_process_failures_total, flush=True)
log.close()
"""
    program = start(tmp_path, rest)
    (child,) = children(program.pid)
    os.kill(child, signal.SIGINT)
    os.killpg(program.pid, signal.SIGINT)
    told, _ = program.communicate(timeout=60)
    assert told.split() == [b"2", b"0"]
    assert program.returncode == 0
    assert not children(program.pid)


def test_a_program_that_forgets_to_close_leaves_nothing(tmp_path):
    program = start(tmp_path, "log.topic('t').append(b'second'); print('ready', flush=True)")
    program.communicate(timeout=60)
    assert program.returncode == 0
    eventually(lambda: not children(program.pid))
    with holdfast.open(tmp_path / "log") as log:
        assert log.marks("t")[0].sealed == 2


def test_a_file_in_the_working_directory_is_not_imported(tmp_path, monkeypatch, open_log):
    """Not by the child either."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "array.py").write_text("raise SystemExit('planted')")
    (tmp_path / "here" / "holdfast.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path / "here")
    log = open_log(segments=in_process())
    log.topic("t").append(b"x")
    log.seal(timeout=60)
    assert log.stats().segments.seal_in == "process"
