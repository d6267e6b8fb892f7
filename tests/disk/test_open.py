"""Opening and owning a log: locks, forks, versions, foreign and lost files, keys."""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

import holdfast
from holdfast import Closed, Corrupt, Invalid, Keyring, NotFound, Settings, Unavailable
from holdfast.journal.sqlite.migrations import migrations

pytestmark = pytest.mark.disk


def python(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_log_is_only_for_its_owner(open_log, tmp_path):
    """Directory and files can be read by their owner alone."""
    open_log().topic("t").append(b"x")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    for name in ("LOCK", "FORMAT", "durable.db", "durable.db-wal"):
        assert stat.S_IMODE((tmp_path / "log" / name).stat().st_mode) == 0o600, name


def test_the_journal_has_a_file_of_its_own(open_log, tmp_path):
    """One dedicated database, its schema from numbered migrations."""
    open_log().topic("t").append(b"x")
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"), flags=apsw.SQLITE_OPEN_READONLY)
    assert db.pragma("user_version") == migrations()[-1][0]
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_schema WHERE type='table'")}
    journal = {"log", "epochs", "key_epochs", "topics", "heads", "entries", "idempotency", "shipping", "shipments"}
    assert tables == journal | {"watermarks", "segments", "schemas", "policies", "spaces", "space_items", "sessions"}
    db.close()


def test_a_segment_is_only_for_its_owner(open_log, tmp_path):
    """Folders and files of segments can be read by their owner alone."""
    log = open_log()
    log.topic("t").append(b"x")
    log.seal()
    found = list((tmp_path / "log" / "segments").rglob("*"))
    assert {path.suffix for path in found if path.is_file()} == {".parquet", ".json"}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_large_schema_opens_again(open_log):
    """A schema that was accepted is never too long to be read back."""
    inner = pa.struct([(f"inner {n} {'x' * 200}", pa.int8()) for n in range(9)])
    log = open_log()
    log.topic("t", schema=pa.schema([(f"outer {n} {'y' * 200}", inner) for n in range(700)]))
    log.close()
    assert len(open_log().topic("t", schema="latest").schema) == 700


def test_one_owner_in_this_process(open_log):
    """A second handle in the same process is refused, and says so."""
    open_log()
    with pytest.raises(Unavailable, match="this process"):
        open_log()


def test_one_owner_among_processes(open_log, tmp_path):
    """Another process is refused with the holder's pid, and may look on meanwhile."""
    log = open_log()
    log.topic("t").append(b"x")
    code = """
        import sys, holdfast
        try:
            holdfast.open(sys.argv[1])
        except holdfast.Unavailable as error:
            print(error)
        with holdfast.open(sys.argv[1], read_only=True) as log:
            print([r.payload for r in log.topic("t").read()])
            try:
                log.topic("t").append(b"no")
            except holdfast.Invalid as error:
                print("refused")
            try:
                log.topic("absent")
            except holdfast.NotFound:
                print("absent")
    """
    done = python(code, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    assert f"process {os.getpid()}" in done.stdout
    assert "read_only=True" in done.stdout
    assert "[b'x']" in done.stdout
    assert done.stdout.split()[-2:] == ["refused", "absent"]


def test_a_reader_follows_the_owner(open_log, tmp_path):
    """A handle that only looks sees new records and new topics of the owner."""
    log = open_log()
    log.topic("t").append(b"1")
    with holdfast.open(tmp_path / "log", read_only=True) as looking:
        follower = looking.topic("t").follow(0)
        assert next(follower).payload == b"1"
        log.topic("t").append(b"2")
        log.topic("u").append(b"3")
        assert next(follower).payload == b"2"
        assert looking.topics() == ["t", "u"]
        assert [r.payload for r in looking.topic("u").read()] == [b"3"]
        assert looking.marks("t")[0].durable == 2


def test_the_lock_ends_with_the_process(tmp_path):
    """A process that was killed leaves no lock behind, and its log opens again."""
    code = """
        import os, signal, sys, holdfast
        log = holdfast.open(sys.argv[1])
        log.topic("t").append(b"x")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert python(code, tmp_path / "log").returncode == -9
    with holdfast.open(tmp_path / "log") as log:
        assert [r.payload for r in log.topic("t").read()] == [b"x"]


def test_a_forked_child_refuses_and_harms_nothing(tmp_path):
    """A child after fork gets Closed(reason='forked'); the parent writes on; the child's exit changes nothing."""
    code = """
        import os, sys, holdfast
        log = holdfast.open(sys.argv[1])
        topic = log.topic("t")
        topic.append(b"before")
        log.space("s").put("k", b"before")

        def commit():
            with log.transaction() as tx:
                tx.append(topic, b"x")

        child = os.fork()
        if child == 0:
            reasons = []
            for call in (lambda: topic.append(b"x"), lambda: topic.offer(b"x"), lambda: list(topic.read()),
                         lambda: log.topic("n"), lambda: commit(), lambda: log.space("s").put("k", b"x"),
                         lambda: log.space("s").get("k")):
                try:
                    call()
                    reasons.append("worked")
                except holdfast.Closed as error:
                    reasons.append(error.reason)
            print(reasons)
            log.close()
            sys.exit(0 if reasons == ["forked"] * 7 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert topic.append(b"after").offset == 1
        # the lock is still ours, not the dead child's
        try:
            holdfast.open(sys.argv[1])
            sys.exit("second owner")
        except holdfast.Unavailable:
            pass
        log.close()
        # and a child that outlives us would not hold it
        with holdfast.open(sys.argv[1]) as again:
            assert [r.payload for r in again.topic("t").read()] == [b"before", b"after"]
    """
    done = python(code, tmp_path / "log")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_child_that_outlives_its_parent_holds_no_lock(tmp_path):
    """The owner's lock is not inherited by children that live on."""
    code = """
        import os, sys, time, holdfast
        log = holdfast.open(sys.argv[1])
        log.topic("t").append(b"x")
        if os.fork() == 0:
            os.close(0); os.close(1); os.close(2)
            time.sleep(20)
            os._exit(0)
        os._exit(0)
    """
    assert python(code, tmp_path / "log").returncode == 0
    with holdfast.open(tmp_path / "log") as log:
        assert log.topic("t").append(b"y").offset == 1


def test_every_open_is_a_new_epoch(open_log, tmp_path, keyring):
    """Each ownership has its own epoch, and each encrypted one its own salt."""
    for _ in range(3):
        open_log(keyring=keyring).close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    assert [row[0] for row in db.execute("SELECT number FROM epochs")] == [1, 2, 3]
    assert len({row[0] for row in db.execute("SELECT salt FROM key_epochs")}) == 3
    db.close()


def test_a_foreign_directory_is_left_alone(tmp_path):
    """A directory with other things in it is not made into a log."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(Invalid, match="not empty"):
        holdfast.open(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_foreign_database_is_left_alone(tmp_path):
    """A durable.db that is somebody else's is not touched."""
    db = apsw.Connection(str(tmp_path / "durable.db"))
    db.execute("CREATE TABLE theirs(x)")
    db.close()
    before = (tmp_path / "durable.db").read_bytes()
    with pytest.raises(Invalid, match="no database of this holdfast"):
        holdfast.open(tmp_path)
    assert (tmp_path / "durable.db").read_bytes() == before


def test_garbage_is_corrupt_with_path_and_remedy(open_log, tmp_path):
    """A database overwritten with garbage is Corrupt, with its path and a hint."""
    open_log().close()
    (tmp_path / "log" / "durable.db").write_bytes(b"garbage" * 5000)
    with pytest.raises(Corrupt) as caught:
        open_log()
    assert caught.value.path.endswith("durable.db")
    assert caught.value.hint


def test_a_lost_database_is_not_replaced_by_an_empty_one(open_log, tmp_path):
    """If durable.db is gone or empty while FORMAT is there, opening refuses."""
    open_log().close()
    (tmp_path / "log" / "durable.db").unlink()
    with pytest.raises(Corrupt):
        open_log()
    (tmp_path / "log" / "durable.db").touch()
    with pytest.raises(Corrupt):
        open_log()


def test_another_logs_database_is_noticed(open_log, tmp_path):
    """A database that was copied in from another log is refused."""
    open_log("a").close()
    open_log("b").close()
    (tmp_path / "b" / "durable.db").write_bytes((tmp_path / "a" / "durable.db").read_bytes())
    with pytest.raises(Corrupt, match="another log"):
        open_log("b")


def test_a_newer_database_is_refused(open_log, tmp_path):
    """What a newer holdfast wrote is not guessed at."""
    open_log().close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    db.execute("PRAGMA user_version=999")
    db.close()
    for options in ({}, {"read_only": True}):
        with pytest.raises(Invalid, match="another version") as caught:
            open_log(**options)
        assert "newer one" in caught.value.hint


def test_a_newer_format_is_refused(open_log, tmp_path):
    """FORMAT has a version of its own."""
    open_log().close()
    path = tmp_path / "log" / "FORMAT"
    path.write_text(path.read_text().replace("holdfast log 1", "holdfast log 2"))
    with pytest.raises(Invalid, match="another version"):
        open_log()
    path.write_text("something else\n")
    with pytest.raises(Corrupt):
        open_log()


def test_migrations_are_numbered_without_gaps():
    """Migration files are 0001, 0002, … each applied once."""
    assert [number for number, _ in migrations()] == list(range(1, len(migrations()) + 1))


def test_reading_needs_a_log(tmp_path):
    """read_only never creates anything."""
    with pytest.raises(NotFound):
        holdfast.open(tmp_path / "absent", read_only=True)
    assert not (tmp_path / "absent").exists()


def test_encrypt_without_a_key_does_not_open(tmp_path, monkeypatch):
    """A security option is never silently ignored."""
    with pytest.raises(Invalid, match=r"crypto\.encrypt"):
        holdfast.open(tmp_path / "log", settings=Settings.from_mapping({"crypto": {"encrypt": True}}))
    assert not (tmp_path / "log").exists()
    with pytest.raises(NotFound):
        holdfast.open(tmp_path / "log", settings=Settings.from_mapping({"crypto": {"keyring": "env:NOT_SET"}}))
    Keyring.generate().save(tmp_path / "key")
    settings = Settings.from_mapping({"crypto": {"encrypt": True, "keyring": f"file:{tmp_path / 'key'}"}})
    with holdfast.open(tmp_path / "log", settings=settings) as log:
        log.topic("t").append(b"secret words")
    files = [path for path in (tmp_path / "log").rglob("*") if path.is_file()]
    assert sum(path.suffix == ".parquet" for path in files) == 1
    assert b"secret words" not in b"".join(path.read_bytes() for path in files)


def test_keyed_and_unkeyed_are_both_reported(open_log, keyring):
    """An unkeyed reader of a keyed log and a keyed reader of an unkeyed one learn so, and are refused."""
    open_log("keyed", keyring=keyring).close()
    open_log("plain").close()
    for read_only in (False, True):
        with pytest.raises(Invalid, match="is encrypted"):
            open_log("keyed", read_only=read_only)
        with pytest.raises(Invalid, match="is not encrypted"):
            open_log("plain", keyring=keyring, read_only=read_only)
    with pytest.raises(Invalid, match="both"):
        open_log("new", keyring=keyring, cipher=object())


def test_wrong_keys_fail_closed(open_log, keyring):
    """A wrong key is refused at open; the right one still works afterwards."""
    log = open_log(keyring=keyring)
    log.topic("t").append(b"x")
    log.close()
    with pytest.raises(Invalid, match="not the key"):
        open_log(keyring=Keyring.generate("k1"))
    with pytest.raises(Invalid, match="no key 'k1'"):
        open_log(keyring=Keyring.generate("k2"))
    assert [r.payload for r in open_log(keyring=keyring).topic("t").read()] == [b"x"]


def test_rotation_in_place(open_log, keyring, tmp_path):
    """A new key encrypts from then on; what older keys encrypted stays readable for as long as they are in the ring."""
    log = open_log(keyring=keyring)
    topic = log.topic("t", partitions=2)
    topic.append(b"old", partition=0)
    newer = keyring.rotated("k2")
    log.rotate_key(newer)
    topic.append(b"new", partition=0)
    assert [r.payload for r in topic.read()] == [b"old", b"new"]
    with pytest.raises(Invalid, match="lacks the present key"):
        log.rotate_key(Keyring.generate("k9"))
    with pytest.raises(Invalid, match="key 'k2' is another one"):
        log.rotate_key(Keyring.generate("k2"))
    topic.append(b"still k2", partition=0)
    log.close()
    log = open_log(keyring=newer)
    assert [r.payload for r in log.topic("t").read(partition=0)] == [b"old", b"new", b"still k2"]
    log.close()
    db = apsw.Connection(str(tmp_path / "log" / "durable.db"))
    assert [r[0] for r in db.execute("SELECT key_id FROM key_epochs ORDER BY number")] == ["k1", "k2", "k2"]
    used = [r[0] for r in db.execute("SELECT key_epoch FROM entries ORDER BY seq")]
    assert used == [1, 2, 2]
    db.close()
    with pytest.raises(Invalid, match="no key"):
        open_log(keyring=keyring)


def test_an_unkeyed_log_cannot_be_rotated(open_log, keyring):
    """Rotation of a log without keys is refused, not ignored."""
    with pytest.raises(Invalid, match="no keyring"):
        open_log().rotate_key(keyring)


@pytest.mark.parametrize("name", ["file", "file/log"])
def test_a_file_in_the_place_of_a_directory_is_invalid(tmp_path, name):
    """A path that is a file, or below one, is Invalid with a hint: trying again would not help."""
    (tmp_path / "file").write_text("x")
    for read_only in (False, True):
        with pytest.raises(Invalid, match="not a directory") as caught:
            holdfast.open(tmp_path / name, read_only=read_only)
        assert "a log is a directory" in caught.value.hint


def test_relative_paths_survive_chdir(tmp_path, monkeypatch):
    """A log opened by a relative path goes on after the process changed its directory."""
    monkeypatch.chdir(tmp_path)
    with holdfast.open("log") as log:
        log.topic("t").append(b"x")
        monkeypatch.chdir("/")
        assert [r.payload for r in log.topic("t").read()] == [b"x"]
        log.topic("t").append(b"y")
    assert Path(tmp_path / "log" / "durable.db").exists()


def test_the_holder_is_not_a_closed_handle(open_log):
    """After close the same process may open the log again at once."""
    for i in range(3):
        log = open_log()
        assert log.topic("t").append(b"x").offset == i
        log.close()
        with pytest.raises(Closed):
            log.topic("t").append(b"x")


def test_asking_who_owns_a_log_never_disturbs_a_starting_owner(tmp_path):
    """The holder is found without touching the lock: a probe in a loop never makes an open fail."""
    import threading

    from holdfast.log_directory import Directory

    with holdfast.open(tmp_path / "log"):
        assert Directory(tmp_path / "log").holder() == os.getpid()
    assert Directory(tmp_path / "log").holder() is None
    done = threading.Event()

    def probe():
        while not done.is_set():
            Directory(tmp_path / "log").holder()

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        for _ in range(50):
            holdfast.open(tmp_path / "log").close()
    finally:
        done.set()
        thread.join()


def test_an_emptied_database_is_not_written_to(open_log, tmp_path):
    """An owner who finds an empty file in place of the database refuses and leaves it as it is."""
    open_log().close()
    (tmp_path / "log" / "durable.db").write_bytes(b"")
    with pytest.raises(Corrupt):
        open_log()
    assert (tmp_path / "log" / "durable.db").read_bytes() == b""


@pytest.mark.parametrize("options", [{}, {"share": True}, {"read_only": True}], ids=["alone", "shared", "read only"])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_path_that_is_too_long_for_the_database_is_refused_with_its_length(
    tmp_path: Path, options: dict[str, bool], is_linked: bool
) -> None:
    """SQLite would only say that it cannot open its file; and it follows links, so a short one does not help."""
    deep = tmp_path
    while len(bytes(deep)) < 494:
        deep /= "d" * min(200, max(1, 493 - len(bytes(deep))))
    given = deep
    if is_linked:
        deep.mkdir(parents=True)
        given = tmp_path / "link"
        given.symlink_to(deep)
    with pytest.raises(Invalid, match=f"too long .*bytes={len(bytes(deep))} bytes_max=493") as refused:
        holdfast.open(given, **options)  # type: ignore[arg-type]
    assert "shorter" in refused.value.hint
    assert is_linked or not deep.exists()


@pytest.mark.parametrize("share", [False, True])
def test_the_longest_path_that_the_database_takes_is_taken(tmp_path: Path, share: bool) -> None:
    deep = tmp_path
    while (left := 493 - len(bytes(deep))) > 0:
        deep /= "d" * (left - 1 if left <= 200 else 100)
    assert len(bytes(deep)) == 493
    with holdfast.open(deep, share=share) as log:
        assert log.topic("t").append(b"one").offset == 0
    with holdfast.open(deep, read_only=True) as log:
        assert [record.payload for record in log.topic("t").read()] == [b"one"]


@pytest.mark.parametrize("how", ["inside", "itself", "link", "url", "relative", "around", "settings", "through a link"])
def test_a_log_and_its_store_lie_apart(tmp_path, monkeypatch, how):
    """Neither lies in the other, by whatever name: each would take the other's files for garbage."""
    log, store = tmp_path / "log", tmp_path / "log" / "store"
    (tmp_path / "link").symlink_to(log)
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "link" if how == "through a link" else log
    given = {
        "inside": store,
        "itself": log,
        "link": tmp_path / "link" / "store",
        "url": f"file://{store}",
        "relative": "./log/store",
        "around": tmp_path,
        "settings": None,
        "through a link": store,
    }[how]
    settings = {"store": {"url": str(store)}} if how == "settings" else {}
    with pytest.raises(Invalid, match="must lie apart"):
        holdfast.open(place, store=given, settings=settings)
    assert not log.exists()
    with pytest.raises(Invalid, match="must lie apart"):
        holdfast.restore(store if given is None else given, log)
    holdfast.open(log, store=tmp_path / "log-store").close()


def test_a_topic_keeps_its_log(tmp_path):
    """The holder of a topic alone appends; the log ends when nobody has either of them."""
    topic = holdfast.open(tmp_path / "log").topic("orders")
    gc.collect()
    assert topic.append(b"x").offset == 0
    with pytest.raises(Unavailable, match="is open"):
        holdfast.open(tmp_path / "log")
    with pytest.warns(ResourceWarning, match="unclosed log"):
        del topic
    with holdfast.open(tmp_path / "log") as log:
        assert log.topic("orders") is log.topic("orders")
        assert [record.payload for record in log.topic("orders").read()] == [b"x"]


def test_what_a_log_gives_keeps_it_open(tmp_path):
    """Each verb works on a log that nobody holds; it ends, without the collector, when what it gave is gone."""

    def opened():
        return holdfast.open(tmp_path / "log")

    def put():
        space = opened().space("settings")
        space.put(b"k", b"v")
        return space.get(b"k")

    def change():
        with opened().transaction() as tx:
            tx.append("orders", b"x")
        assert tx is not None

    def run():
        with opened().execution("work") as ctx:
            return ctx.step("one", lambda: 1)

    def consume():
        with opened().topic("orders").consumer("billing") as consumer:
            return consumer.poll(1)

    verbs = {
        "transaction": change, "space": put, "execution": run, "consumer": consume,
        "executions": lambda: opened().executions.list(),
        "producer": lambda: opened().producer("p").append("orders", b"x", sequence=1),
        "read": lambda: list(opened().topic("orders").read()),
        "typed": lambda: opened().topic("rows", schema=pa.schema([("n", pa.int64())])).append({"n": 1}),
        "typed read": lambda: opened().topic("rows", schema="latest").read().to_arrow().num_rows,
    }  # fmt: skip
    for verb in verbs.values():
        with pytest.warns(ResourceWarning, match="unclosed log"):
            verb()
