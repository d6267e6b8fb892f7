"""Looking at a log that may not be written: read-only mounts, other users' directories, what a dead owner left."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid, Keyring, NotFound, Settings, Unavailable
from holdfast.journal.sqlite import read_only
from holdfast.journal.sqlite.read_only import ReadOnlyAccess

pytestmark = pytest.mark.disk

KEY = "HOLDFAST_TEST_KEYRING"
SECRET = {KEY: "k1:" + base64.b64encode(bytes(range(32))).decode()}
PATIENCE = 60

OWNER = """
import sys, holdfast
from holdfast import Keyring, Settings
path, keyed = sys.argv[1], sys.argv[2] == "keyed"
keyring = Keyring.from_reference("env:HOLDFAST_TEST_KEYRING") if keyed else None
log = holdfast.open(path, keyring=keyring, settings=Settings.from_mapping({"segments": {"seal_on_close": False}}))
topic = log.topic("orders")
topic.append_batch([b"sealed-%d" % n for n in range(3)])
log.seal()
topic.append(b"tail")
print("ready", flush=True)
for line in sys.stdin:
    topic.append(line.strip().encode())
    print("stored", flush=True)
log.close()
"""

READER = """
import json, sys, holdfast
from holdfast import Keyring
path, keyed = sys.argv[1], sys.argv[2] == "keyed"
keyring = Keyring.from_reference("env:HOLDFAST_TEST_KEYRING") if keyed else None
with holdfast.open(path, read_only=True, keyring=keyring) as log:
    payloads = [record.payload.decode() for record in log.topic("orders").read()]
    print(json.dumps([payloads, log.topics(), log.marks("orders")[0].durable, log.read_only]))
"""

ALL = ["sealed-0", "sealed-1", "sealed-2", "tail"]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user of this machine gets to."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def owner(path: Path, keyed: str) -> subprocess.Popen[str]:
    environment = os.environ | SECRET
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", OWNER, str(path), keyed]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """A log as a clean close leaves it, as kill -9 does, or as somebody did who copied it without its shared memory."""
    made = {}
    for keyed in ("plain", "keyed"):
        for state in ("closed", "killed"):
            path = made[state, keyed] = tmp_path_factory.mktemp("logs") / "log"
            process = owner(path, keyed)
            if state == "killed":
                process.kill()
            process.communicate(timeout=PATIENCE)
            assert (path / "durable.db-wal").exists() == (state == "killed")
        copied = made["copied", keyed] = tmp_path_factory.mktemp("logs") / "log"
        shutil.copytree(made["killed", keyed], copied, ignore=shutil.ignore_patterns("*-shm", "SOCKET"))
    return made


@pytest.fixture
def left_by(originals: dict[tuple[str, str], Path]) -> Callable[[str, Path, str], None]:
    """Put a copy of such a log there."""
    return lambda state, path, keyed: (
        shutil.copytree(originals[state, keyed], path, ignore=shutil.ignore_patterns("SOCKET")) and None
    )


def tree(path: Path) -> dict[str, tuple[str, int, int]]:
    """Everything in a directory: content, mode and time of change of each."""
    found = {}
    for file in sorted([path, *path.rglob("*")]):
        content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        found[str(file.relative_to(path))] = (content, file.stat().st_mode, file.stat().st_mtime_ns)
    return found


def mounted_read_only(path: Path, command: list[str], **options: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees this directory through a read-only mount."""
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = (
        'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && ! touch "$0/x" 2>/dev/null || exit 99; exec "$@"'
    )
    done = subprocess.run(
        [*unshare, "sh", "-c", script, str(path), *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | SECRET | options,
    )
    if done.returncode == 99 or "unshare failed" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    return done


def in_another_s_directory(path: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that may read this directory and write nothing in it: it is somebody else's, and modes hold."""
    if os.geteuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can give files away, and give up what makes it root")
    for file in [path, *path.rglob("*")]:
        file.chmod(0o555 if file.is_dir() else 0o444)
        os.chown(file, 65534, 65534)
    return without_rights(command)


def without_rights(command: list[str]) -> subprocess.CompletedProcess[str]:
    rights = "--bounding-set=-dac_override,-dac_read_search,-fowner,-chown"
    return subprocess.run(
        ["setpriv", rights, *command],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=os.environ | SECRET,
    )


READERS = {"mount": mounted_read_only, "user": in_another_s_directory}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("state", ["closed", "killed", "copied"])
@pytest.mark.parametrize(("by", "keyed"), [("mount", "keyed"), ("user", "plain")])
def test_a_log_that_may_not_be_written_is_read_whole(left_by, place, state, by, keyed):
    """Sealed and unsealed records, whatever its last owner left beside the database; and nothing is changed."""
    left_by(state, place / "log", keyed)
    command = [sys.executable, "-c", READER, str(place / "log"), keyed]
    READERS[by](place / "log", ["true"])  # sets the modes, where they are part of it
    before = tree(place / "log")
    done = READERS[by](place / "log", command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [ALL, ["orders"], 4, True]
    assert tree(place / "log") == before


@pytest.mark.parametrize("state", ["closed", "killed", "copied"])
def test_looking_changes_nothing_even_where_it_could(left_by, place, state, monkeypatch):
    """Also in a directory that is writable: no file comes, none goes, none changes; no copy stays behind."""
    left_by(state, place / "log", "plain")
    (place / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    before = tree(place / "log")
    with holdfast.open(place / "log", read_only=True) as log:
        assert [record.payload.decode() for record in log.topic("orders").read()] == ALL
        assert log.reconcile(deep=True).findings == ()
        assert len(os.listdir(place / "tmp")) == (state == "copied")
    assert tree(place / "log") == before
    assert os.listdir(place / "tmp") == []


VERBS = {
    "status": ["status", "LOG"],
    "topics": ["topics", "LOG"],
    "read": ["read", "LOG", "orders"],
    "inspect": ["inspect", "LOG"],
    "reconcile": ["reconcile", "LOG", "--deep"],
}


@pytest.mark.parametrize(
    "state", [pytest.param("closed", marks=pytest.mark.soak), pytest.param("killed", marks=pytest.mark.soak), "copied"]
)
def test_the_command_line_reads_a_read_only_mount(left_by, place, state):
    """Each verb that looks."""
    left_by(state, place / "log", "plain")
    main = "from holdfast.cli import main; import sys; sys.argv[0] = 'holdfast'; main()"
    for verb, words in VERBS.items():
        arguments = [str(place / "log") if word == "LOG" else word for word in words]
        done = mounted_read_only(place / "log", [sys.executable, "-c", main, *arguments])
        assert done.returncode == 0, (verb, done.stderr)
        assert verb != "read" or [word for word in done.stdout.split() if word in ALL] == ALL


def test_what_is_sealed_is_read_from_a_read_only_mount(left_by, place):
    """`holdfast.read` of a log's own directory."""
    left_by("closed", place / "log", "plain")
    code = "import sys, holdfast; print(holdfast.read(sys.argv[1], topic='orders').to_arrow().num_rows)"
    done = mounted_read_only(place / "log", [sys.executable, "-c", code, str(place / "log" / "segments")])
    assert (done.returncode, done.stdout.strip()) == (0, "3"), done.stderr


def test_a_reader_on_a_read_only_mount_follows_a_living_owner(place):
    """It sees what becomes durable after it was opened, through the owner's own write-ahead log."""
    process = owner(place / "log", "plain")
    code = """
import sys, holdfast
with holdfast.open(sys.argv[1], read_only=True) as log:
    for record in log.topic("orders").follow(0):
        print(record.payload.decode(), flush=True)
        if record.payload == b"last":
            break
"""
    assert process.stdin is not None
    process.stdin.write("last\n")
    process.stdin.flush()
    done = mounted_read_only(place / "log", [sys.executable, "-c", code, str(place / "log")])
    assert done.stdout.split() == [*ALL, "last"], done.stderr
    process.communicate(timeout=PATIENCE)


def test_a_handle_that_looks_sees_the_owner_come_and_go(left_by, place):
    """Opened beside nobody, it goes on to read when an owner comes, writes, folds its log in and leaves."""
    left_by("closed", place / "log", "plain")
    with holdfast.open(place / "log", read_only=True) as watching:
        topic = watching.topic("orders")
        assert topic.read().to_arrow().num_rows == 4
        with holdfast.open(place / "log") as log:
            log.topic("orders").append(b"more")
            assert topic.read().to_arrow().num_rows == 5
            log.topic("new").append(b"x")
            assert watching.topics() == ["new", "orders"]
        assert topic.read().to_arrow().num_rows == 5
        with holdfast.open(place / "log") as log:
            log.topic("orders").append(b"and more")
        assert [record.payload for record in topic.read(-2)] == [b"more", b"and more"]


def test_an_owner_that_dies_half_way_through_its_index_is_no_failure(place):
    """A reader may not finish the index of the write-ahead log, and needs none to read on."""
    process = owner(place / "log", "plain")
    with holdfast.open(place / "log", read_only=True) as watching:
        assert watching.topic("orders").read().to_arrow().num_rows == 4
        process.kill()
        process.communicate(timeout=PATIENCE)
        # By another process: this one would lose its locks on the file with the descriptor.
        torn = "import sys; open(sys.argv[1], 'r+b').write(bytes(48))"
        subprocess.run([sys.executable, "-c", torn, place / "log" / "durable.db-shm"], check=True)
        assert watching.topic("orders").read().to_arrow().num_rows == 4
        assert watching.topics() == ["orders"]
        with holdfast.open(place / "log") as log:
            log.topic("orders").append(b"more")
            assert watching.topic("orders").read().to_arrow().num_rows == 5


def test_a_handle_that_looks_at_a_copy_sees_the_owner_come(left_by, place):
    """A copy is taken anew when what was copied has changed."""
    left_by("copied", place / "log", "plain")
    with holdfast.open(place / "log", read_only=True) as watching:
        assert watching.topic("orders").read().to_arrow().num_rows == 4
        with holdfast.open(place / "log") as log:
            log.topic("orders").append(b"more")
        assert watching.topic("orders").read().to_arrow().num_rows == 5


def test_an_owner_that_leaves_while_a_copy_is_taken_is_no_failure(left_by, place, monkeypatch):
    """Its write-ahead log is gone then, and the database is all there is."""
    left_by("copied", place / "log", "plain")
    first_bytes = read_only._first_bytes

    def folded_in(path: Path) -> bytes:
        monkeypatch.setattr(read_only, "_first_bytes", first_bytes)
        holdfast.open(place / "log").close()
        return first_bytes(path)

    monkeypatch.setattr(read_only, "_first_bytes", folded_in)
    with holdfast.open(place / "log", read_only=True) as log:
        assert log.topic("orders").read().to_arrow().num_rows == 4


def test_an_owner_that_leaves_before_the_first_read_is_no_failure(left_by, place):
    """What was chosen by the files that lay there is chosen anew."""
    left_by("killed", place / "log", "plain")
    access = ReadOnlyAccess(place / "log" / "durable.db")
    holdfast.open(place / "log").close()
    connection = access.connect()
    assert connection.execute("SELECT count(*) FROM topics").get == 1
    connection.close()
    access.close()


def test_taking_a_copy_leaves_the_locks_of_an_owner_in_this_process(open_log, tmp_path):
    """Closing a descriptor of its own would drop them: the owner may come while a copy is taken."""
    log = open_log()
    log.topic("orders").append(b"more")
    access = ReadOnlyAccess(log.path / "durable.db")
    access._take_copy()
    access.close()
    inode = (tmp_path / "log" / "durable.db").stat().st_ino
    held = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    assert any("POSIX" in line and str(os.getpid()) in line.split() for line in held)


def test_everything_that_would_write_is_refused(left_by, place):
    """With a text that says why, and a directory that stays as it is."""
    left_by("closed", place / "log", "plain")
    before = tree(place / "log")
    with holdfast.open(place / "log", read_only=True) as log:
        topic = log.topic("orders")
        refused = [
            lambda: topic.append(b"x"), lambda: topic.append_batch([b"x"]), lambda: topic.submit(b"x"),
            lambda: topic.offer(b"x"), log.seal, log.retain,
            lambda: log.set_retention("orders", records_max=1), lambda: log.reconcile(fix=True),
            lambda: log.rotate_key(Keyring.generate("k")), log.ship, log.subscribe, log.rebuild_store,
            lambda: log.channels("alice"),
        ]  # fmt: skip
        for verb in refused:
            with pytest.raises(Invalid, match="reading only"):
                verb()
        with pytest.raises(NotFound):
            log.topic("new")
    assert tree(place / "log") == before


def test_opening_for_appending_says_how_to_read(left_by, place):
    """Where the directory cannot be written."""
    left_by("closed", place / "log", "plain")
    code = "import sys, holdfast\ntry: holdfast.open(sys.argv[1])\nexcept holdfast.Unavailable as e: print(e.hint)"
    done = mounted_read_only(place / "log", [sys.executable, "-c", code, str(place / "log")])
    assert "read_only=True" in done.stdout, done.stderr


def test_a_copy_that_has_no_room_is_refused_with_the_remedy(left_by, place, monkeypatch):
    """Before anything is copied, and nothing is left behind."""
    left_by("copied", place / "log", "plain")
    (place / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "tmp"))
    monkeypatch.setattr("holdfast.journal.sqlite.read_only._FREE_BYTES_LEFT", 2**62)
    with pytest.raises(Unavailable, match="no room") as caught:
        holdfast.open(place / "log", read_only=True)
    assert "TMPDIR" in (caught.value.hint or "")
    assert os.listdir(place / "tmp") == []


def test_what_may_not_be_read_says_whose_it_is(left_by, place):
    """A database of another user, mode 0600."""
    left_by("closed", place / "log", "plain")
    in_another_s_directory(place / "log", ["true"])
    (place / "log" / "durable.db").chmod(0o600)
    code = "import sys, holdfast\ntry: holdfast.open(sys.argv[1], read_only=True)\nexcept holdfast.Unavailable as e:"
    command = [sys.executable, "-c", code + " print(e.message, e.hint)", str(place / "log")]
    done = without_rights(command)
    assert "may not read" in done.stdout
    assert "user that owns it" in done.stdout


def test_a_database_that_changes_while_it_is_read_without_locks_does_not_count(open_log, tmp_path):
    """An owner came, wrote and folded its log in, in the middle of a transaction: that is reported, not believed."""
    open_log().close()
    from holdfast.journal.sqlite.sqlite_backend import SqliteBackend

    backend = SqliteBackend(tmp_path / "log" / "durable.db", read_only=True)
    with pytest.raises(Unavailable, match="changed while it was read"), backend.tables() as tables:
        assert tables.control_rows().log is not None
        with holdfast.open(tmp_path / "log", settings=Settings.from_mapping({"journal": {}})) as log:
            log.topic("t").append(b"x")
    with backend.tables() as tables:
        assert len(tables.control_rows().topics) == 1
    backend.close()
