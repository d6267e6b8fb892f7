from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import holdfast
from holdfast import Keyring
from holdfast.cli.verbs import append
from holdfast.journal.sqlite.group_file_store import GroupFileStore
from holdfast.sharing.opening import open_or_call
from tests.cli.conftest import PATIENCE, Run, Spawn, drain, objects, segment_files

pytestmark = pytest.mark.disk


def records(path: Path, topic: str = "orders", **options: object) -> list[holdfast.Record]:
    with holdfast.open(path, read_only=True, **options) as log:
        return list(log.topic(topic).read())


def test_append_prints_where_the_record_is(run: Run, tmp_path: Path) -> None:
    """One payload gives one receipt on stdout, and the record is there."""
    result = run("append", "log", "orders", "hello")
    assert (result.exit_code, result.stdout) == (0, "topic=orders partition=0 offset=0 seq=1\n")
    assert [record.payload for record in records(tmp_path / "log")] == [b"hello"]


def test_a_new_log_is_announced_in_words_only(run: Run) -> None:
    """Creating a log says on stderr whether it is encrypted; appending again says nothing."""
    assert "created a log, not encrypted" in run("append", "log", "orders", "one").stderr
    assert run("append", "log", "orders", "two").stderr == ""


def test_json_receipts(run: Run) -> None:
    """With --json a receipt is one object with the documented fields."""
    result = run("append", "log", "orders", "hello", "--json")
    assert objects(result.stdout) == [{"topic": "orders", "partition": 0, "offset": 0, "seq": 1, "repeated": False}]


@pytest.mark.parametrize("argument", [[], ["-"]])
def test_stdin_is_one_record(run: Run, tmp_path: Path, argument: list[str]) -> None:
    """Without a payload, or with a dash, all of stdin is one record, byte by byte."""
    assert run("append", "log", "orders", *argument, stdin=b"a\nb\xff\n").exit_code == 0
    assert [record.payload for record in records(tmp_path / "log")] == [b"a\nb\xff\n"]


def test_an_empty_stdin_appends_nothing_and_says_so(run: Run, tmp_path: Path) -> None:
    """A pipe whose program failed makes no record of nothing, and no log."""
    done = run("append", "data", "orders", stdin=b"")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing was appended" in done.stderr
    assert not (tmp_path / "data").exists()
    assert run("append", "data", "orders", "").exit_code == 0


def test_a_payload_may_begin_with_a_dash(run: Run, tmp_path: Path) -> None:
    """What stands behind two dashes is a payload."""
    assert run("append", "log", "orders", "--", "--json").exit_code == 0
    assert records(tmp_path / "log")[0].payload == b"--json"


def test_lines_are_records(run: Run, tmp_path: Path) -> None:
    """With --lines every line is a record without its newline: empty ones, carriage returns and the last one too."""
    result = run("append", "log", "orders", "--lines", "--json", stdin=b"one\n\ntwo\r\n\xff\nlast")
    assert [record.payload for record in records(tmp_path / "log")] == [b"one", b"", b"two\r", b"\xff", b"last"]
    assert [receipt["offset"] for receipt in objects(result.stdout)] == [0, 1, 2, 3, 4]
    assert "appended 5 records to orders" in result.stderr


def test_no_lines_are_no_records(run: Run, tmp_path: Path) -> None:
    """An empty stdin appends nothing with --lines."""
    assert run("append", "log", "orders", "--lines", stdin=b"").stdout == ""
    assert records(tmp_path / "log") == []


def test_key_kind_and_headers(run: Run, tmp_path: Path) -> None:
    """Key, kind and repeated headers are stored with the record."""
    options = ["--key", "c-42", "--kind", "created", "--header", "trace=1=2", "--header", "empty="]
    assert run("append", "log", "orders", "x", *options).exit_code == 0
    record = records(tmp_path / "log")[0]
    assert (record.key, record.kind, record.headers) == (b"c-42", "created", {"trace": b"1=2", "empty": b""})


def test_a_topic_has_the_partitions_that_are_named(run: Run) -> None:
    """A topic is created with --partitions, and --partition names one of them."""
    result = run("append", "log", "orders", "x", "--partitions", 3, "--partition", 2, "--json")
    assert objects(result.stdout)[0]["partition"] == 2
    refused = run("append", "log", "orders", "x", "--partition", 3)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "hint: its partitions are 0 to 2" in refused.stderr


def test_an_idempotency_key_appends_once(run: Run, tmp_path: Path) -> None:
    """Repeating an idempotency key writes nothing and prints the first receipt."""
    first = run("append", "log", "orders", "x", "--idempotency-key", "k").stdout
    assert run("append", "log", "orders", "x", "--idempotency-key", "k").stdout == first
    assert len(records(tmp_path / "log")) == 1


def test_an_import_can_be_repeated(run: Run, tmp_path: Path) -> None:
    """With --lines and an idempotency key, repeating from the beginning appends only what is missing."""
    run("append", "log", "orders", "--lines", "--idempotency-key", "k", stdin=b"one\ntwo\n")
    again = run("append", "log", "orders", "--lines", "--idempotency-key", "k", "--json", stdin=b"one\ntwo\nthree\n")
    assert [receipt["offset"] for receipt in objects(again.stdout)] == [0, 1, 2]
    assert [record.payload for record in records(tmp_path / "log")] == [b"one", b"two", b"three"]


def test_keys_come_by_reference(run: Run, tmp_path: Path, keyring: Keyring) -> None:
    """A keyring named by option or by setting encrypts a new log and opens it again."""
    keyring.save(tmp_path / "keys")
    made = run("append", "log", "orders", "x", "--keyring", f"file:{tmp_path / 'keys'}")
    assert (made.exit_code, "created a log, encrypted" in made.stderr) == (0, True)
    assert run("append", "log", "orders", "y", HOLDFAST_CRYPTO__KEYRING="file:keys").exit_code == 0
    assert len(records(tmp_path / "log", keyring=keyring)) == 2
    assert run("append", "log", "orders", "z").exit_code == 1


def test_a_key_file_that_others_can_read_is_warned_of(run: Run, tmp_path: Path, keyring: Keyring) -> None:
    """A keyring file with loose permissions is used, with a warning on stderr."""
    keyring.save(tmp_path / "keys")
    (tmp_path / "keys").chmod(0o644)
    result = run("append", "log", "orders", "x", "--keyring", "file:keys")
    assert "warning: keyring file is readable by others" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["secret-payload", "too", "many"],
        ["x", "--header", "secret-payload"],
        ["x", "--header", "=secret-payload"],
        ["secret-payload", "--lines"],
        ["secret-payload", "--partition", "one"],
        ["secret-payload", "--kind", "\udcff"],
    ],
)
def test_wrong_usage_creates_nothing_and_repeats_no_payload(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Wrong usage exits with 2, before a log is created, and does not show the payload again."""
    result = run("append", "log", "orders", *arguments)
    assert (result.exit_code, result.stdout, (tmp_path / "log").exists()) == (2, "", False)
    assert "error: " in result.stderr
    assert "secret" not in result.stderr


def test_a_payload_that_is_too_large_is_refused(run: Run) -> None:
    """A payload above the limit is refused, from an argument or from stdin."""
    limit = {"HOLDFAST_JOURNAL__PAYLOAD_BYTES_MAX": "10"}
    for result in (
        run("append", "log", "orders", "x" * 11, **limit),
        run("append", "log", "orders", stdin=b"x" * 5000, **limit),
    ):
        assert (result.exit_code, result.stdout) == (1, "")
        assert "error: the payload is too large" in result.stderr


@pytest.mark.parametrize("end", [b"\nfour\n", b""])
def test_a_refused_line_ends_it_and_what_came_before_is_reported(run: Run, tmp_path: Path, end: bytes) -> None:
    """The first line that is refused stops the append; the lines before it are durable and printed."""
    stdin = b"one\ntwo\n" + b"x" * 200_000 + end
    result = run("append", "log", "orders", "--lines", stdin=stdin, HOLDFAST_JOURNAL__PAYLOAD_BYTES_MAX="10")
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 2)
    assert "stopped at line 3" in result.stderr
    assert [record.payload for record in records(tmp_path / "log")] == [b"one", b"two"]


@pytest.mark.parametrize(("arguments", "stdin"), [(["one"], None), (["--lines"], b"one\n")])
def test_a_receipt_is_printed_only_when_its_record_is_durable(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], stdin: bytes | None
) -> None:
    """However long the commit takes, the receipt is printed after it."""
    printed, printed_early = Event(), []
    commit = GroupFileStore.append_group

    def commit_late(groups: GroupFileStore, *frame: Any) -> None:
        printed_early.append(printed.wait(0.2))
        commit(groups, *frame)

    monkeypatch.setattr(GroupFileStore, "append_group", commit_late)
    monkeypatch.setattr(append, "emit_json", lambda receipt: printed.set())
    assert run("append", "log", "orders", *arguments, "--json", stdin=stdin).exit_code == 0
    assert printed.is_set()
    assert printed_early == [False]


def test_long_input_passes_through_a_bounded_window(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stdin of more lines than the window is appended whole and in order, with few tickets waiting."""
    monkeypatch.setattr(append, "_WINDOW_TICKETS", 100)
    waiting: list[int] = []
    settle = append._Appender._settle

    def watch(self: append._Appender, kept: int) -> None:
        settle(self, kept)
        waiting.append(len(self._tickets))

    monkeypatch.setattr(append._Appender, "_settle", watch)
    lines = [b"%d" % number for number in range(40_000)]
    result = run("append", "log", "orders", "--lines", stdin=b"\n".join(lines))
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 40_000
    assert max(waiting) <= 100
    assert [record.payload for record in records(tmp_path / "log")] == lines


def test_chunks_keep_every_byte() -> None:
    """However stdin is cut into chunks, the same lines come out."""
    text = b"a" * 70_000 + b"\n\nb\n" + b"c" * 65_535 + b"\n" + b"d" * 65_536
    lines = [line for found, _ in append._chunks(io.BufferedReader(io.BytesIO(text)), 10**6) for line in found]
    assert lines == text.split(b"\n")


def test_receipts_do_not_wait_for_the_end_of_stdin(spawn: Spawn) -> None:
    """A line that comes through a pipe is printed as soon as it is durable, while the pipe stays open."""
    process = spawn("append", "log", "orders", "--lines")
    assert process.stdin is not None
    assert process.stdout is not None
    for offset in range(3):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        assert b"offset=%d" % offset in process.stdout.readline()
    process.stdin.close()
    assert process.wait(PATIENCE) == 0


def test_a_reader_of_receipts_that_goes_away_is_an_error(spawn: Spawn) -> None:
    """When the reader of the receipts is gone the append stops and says so: the rest was not appended."""
    process = spawn("append", "log", "orders", "--lines")
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    try:
        process.stdin.write(b"line\n" * 50_000)
        process.stdin.close()
    except BrokenPipeError:
        pass
    assert process.wait(PATIENCE) == 1
    assert b"the reader of the receipts is gone" in process.stderr.read()


def test_the_owner_of_a_log_appends_what_the_command_line_brings(run: Run, log: Path) -> None:
    """At once, into a new topic, too; where the owner does not listen, it exits with 1 and names its process."""
    with holdfast.open(log) as owner:
        for number in range(2):
            result = run("append", log, "fresh", "x", "--json")
            assert (result.exit_code, objects(result.stdout)[0]["offset"], result.stderr) == (0, number, "")
        assert len(list(owner.topic("fresh").read())) == 2


def test_an_owner_that_cannot_be_asked_is_named(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped, or its directory has no sockets."""
    monkeypatch.setattr("holdfast.sharing.callers.calling.JOIN_S", 0.05)
    with open_or_call(log):
        result = run("append", log, "orders", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"pid={os.getpid()}" in result.stderr


def test_a_shared_log_is_joined(run: Run, log: Path) -> None:
    """While others share the log the command line is one more of them: it appends, seals and retains."""
    with holdfast.open(log, share=True) as shared:
        assert run("append", log, "fresh", "x").exit_code == 0
        assert run("seal", log).exit_code == 0
        assert run("retain", log).exit_code == 0
        assert [record.payload for record in shared.topic("fresh").read()] == [b"x"]
        assert shared.marks("fresh")[0].sealed == 1
    assert run("append", log, "fresh", "y").exit_code == 0  # nobody is there: it is owned for a moment
    with holdfast.open(log, read_only=True) as left:
        assert left.marks("fresh")[0].sealed == 1


def test_stdin_that_is_closed_is_wrong_usage(spawn: Spawn) -> None:
    """Without a payload and without stdin there is nothing to append: exit code 2."""
    code = "import os; os.close(0); import sys; sys.stdin = None; from holdfast.cli import main; main()"
    process = spawn("append", "log", "orders", code=code, stdin=None)
    assert process.wait(PATIENCE) == 2


def test_progress_is_shown_on_a_terminal_only(spawn: Spawn, tmp_path: Path) -> None:
    """With stderr on a terminal and stdout elsewhere, a long append shows records, bytes and rate."""
    (tmp_path / "lines").write_bytes(b"line\n" * 50_000)
    terminal, theirs = os.openpty()
    with (tmp_path / "lines").open("rb") as lines:
        process = spawn("append", "log", "orders", "--lines", stdin=lines, stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = drain(terminal)
    assert process.wait(PATIENCE) == 0
    assert b"records durable" in shown
    assert b"appended 50000 records" in shown


def test_append_leaves_no_segment_behind(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is called, and whatever the settings say, records stay in the tail when it lets go."""
    monkeypatch.setenv("HOLDFAST_SEGMENTS__SEAL_ON_CLOSE", "true")
    for _ in range(2):
        assert run("append", "log", "orders", "x").exit_code == 0
    with holdfast.open(tmp_path / "log", read_only=True) as log:
        assert (log.marks("orders")[0].durable, log.marks("orders")[0].sealed) == (2, 0)
    assert segment_files(tmp_path / "log") == []


# -- typed topics -------------------------------------------------------------------------------------------------


def rows(path: Path) -> list[dict[str, object]]:
    with holdfast.open(path, read_only=True) as log:
        return [{"a": row["a"], "s": row["s"]} for row in log.topic("rows", schema="latest").read(3)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_typed_topic_takes_lines_of_json(run: Run, sealed_log: Path, whole: bool) -> None:
    """One object per line is a row: all as one unit, or with --lines one by one; each row has its receipt."""
    stdin = b'{"a": 7, "s": "seven"}\n\n{"a": 8}\n'
    result = run("append", sealed_log, "rows", "--json", *([] if whole else ["--lines"]), stdin=stdin)
    receipts = objects(result.stdout)
    assert (result.exit_code, [receipt["offset"] for receipt in receipts]) == (0, [3, 4])
    assert len({receipt["seq"] for receipt in receipts}) in (
        (1,) if whole else (1, 2)
    )  # those that come together share one
    assert rows(sealed_log) == [{"a": 7, "s": "seven"}, {"a": 8, "s": None}]


def test_a_row_may_be_an_argument(run: Run, sealed_log: Path) -> None:
    """A JSON object as PAYLOAD is one row."""
    assert run("append", sealed_log, "rows", '{"a": 7}').stdout == "topic=rows partition=0 offset=3 seq=7\n"


@pytest.mark.parametrize("bad", [b'{"a": "text"}', b'{"s": "no a"}', b'{"a": 1, "unknown": 1}', b"[1]", b"{"])
def test_a_row_that_does_not_fit_is_refused(run: Run, sealed_log: Path, bad: bytes) -> None:
    """As one unit nothing is written; with --lines the rows before it are durable and printed."""
    whole = run("append", sealed_log, "rows", stdin=b'{"a": 7}\n' + bad + b"\n")
    assert (whole.exit_code, whole.stdout, rows(sealed_log)) == (1, "", [])
    lines = run("append", sealed_log, "rows", "--lines", stdin=b'{"a": 7}\n' + bad + b"\n")
    assert (lines.exit_code, len(lines.stdout.splitlines()), rows(sealed_log)) == (1, 1, [{"a": 7, "s": None}])
    assert "stopped at line 2" in lines.stderr


def test_rows_have_no_key_kind_or_headers(run: Run, sealed_log: Path) -> None:
    """Options of raw records are refused for a typed topic, by name."""
    result = run("append", sealed_log, "rows", '{"a": 7}', "--key", "k", "--header", "h=v")
    assert (result.exit_code, "its rows have no --key, --header" in result.stderr) == (1, True)
    assert rows(sealed_log) == []


def test_an_import_of_rows_can_be_repeated(run: Run, sealed_log: Path) -> None:
    """With an idempotency key, rows are appended once, as one unit or line by line."""
    for options in ([], ["--lines"]):
        for _ in range(2):
            result = run("append", sealed_log, "rows", *options, "--idempotency-key", "k", stdin=b'{"a":7}\n{"a":8}\n')
            assert (result.exit_code, len(result.stdout.splitlines())) == (0, 2)
    assert [row["a"] for row in rows(sealed_log)] == [7, 8, 7, 8]


def test_rows_that_are_too_large_for_one_unit_are_refused(run: Run, sealed_log: Path) -> None:
    """Stdin that is longer than a payload may be is refused, not cut off, and the hint names --lines."""
    result = run("append", sealed_log, "rows", stdin=b'{"a":7}\n' * 9, HOLDFAST_JOURNAL__PAYLOAD_BYTES_MAX="16")
    assert (result.exit_code, "hint: give rows with --lines" in result.stderr) == (1, True)
    assert rows(sealed_log) == []
