from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.cli.text import shown
from holdfast.errors import printable
from holdfast.model.record_json import iso
from tests.cli.conftest import PATIENCE, Owner, Run, Spawn, objects, segment_files, tamper

pytestmark = pytest.mark.disk


def payloads(text: str) -> list[str]:
    return [found["payload"] for found in objects(text)]


def test_read_prints_a_line_per_record(run: Run, log: Path) -> None:
    """In text a record is one line: partition, offset, time, key, kind, payload."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b"x\ny", key=b"k", kind="made", time=0)
    result = run("read", log, "orders", "--start", -1)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "0       10  1970-01-01T00:00:00.000000Z  k  made  x\\ny\n"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(10)),
        (["--start", "7"], range(7, 10)),
        (["--start", "-2"], range(8, 10)),
        (["--end", "2"], range(2)),
        (["--end", "-8"], range(2)),
        (["--limit", "3"], range(3)),
        (["--limit", "0"], range(0)),
        (["--reverse", "--limit", "3"], range(9, 6, -1)),
        (["--partition", "0"], range(10)),
        (["--start", "20"], range(0)),
        (["--limit", "9" * 30, "--start", "-" + "9" * 30], range(10)),
    ],
)
def test_read_takes_a_span(run: Run, log: Path, options: list[str], expected: range) -> None:
    """Start, end, limit, reverse and partition choose the records that the library would."""
    result = run("read", log, "orders", "--json", *options)
    assert result.exit_code == 0
    assert [found["offset"] for found in objects(result.stdout)] == list(expected)


def test_json_has_the_documented_fields(run: Run, log: Path) -> None:
    """A record is one JSON object with all its fields, null where it has none."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b'{"a": "b"}\n', key=b"k", kind="made", headers={"h": b"v"}, time=1)
    plain, full = objects(run("read", log, "orders", "--json", "--start", -2).stdout)
    assert full == {
        "topic": "orders",
        "partition": 0,
        "offset": 10,
        "time": "1970-01-01T00:00:00.000001Z",
        "time_us": 1,
        "key": "k",
        "kind": "made",
        "headers": {"h": "v"},
        "payload": '{"a": "b"}\n',
    }
    assert (plain["key"], plain["kind"], plain["headers"]) == (None, None, None)


@pytest.mark.parametrize(
    ("value", "text"), [(b"\xff", "/w=="), (b"\x1b[31m", "G1szMW0="), (b"\x00", "AA=="), ("\x9b".encode(), "wps=")]
)
def test_what_is_not_text_is_base64(run: Run, log: Path, value: bytes, text: str) -> None:
    """Bytes that are no text, or hold control characters, become base64, and a field says so."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(value, key=value, headers={"h": value, "t": b"text"})
    found = objects(run("read", log, "orders", "--json", "--start", -1).stdout)[0]
    assert (found["payload"], found["payload_encoding"]) == (text, "base64")
    assert (found["key"], found["key_encoding"]) == (text, "base64")
    assert (found["headers"], found["headers_encoding"]) == ({"h": text, "t": "dGV4dA=="}, "base64")


def test_text_of_all_languages_stays_text(run: Run, log: Path) -> None:
    """Text in any script, with tabs and line ends, is text in JSON."""
    text = "größer\t大きい\u3000\r\n👩‍🚀"
    with holdfast.open(log) as opened:
        opened.topic("orders").append(text.encode())
    assert payloads(run("read", log, "orders", "--json", "--start", -1).stdout) == [text]


def test_a_payload_cannot_steer_a_terminal() -> None:
    """Nothing that does not print reaches a terminal from a record."""
    for value in (b"\x1b]0;title\x07", "\u202ereversed".encode(), b"\r\n", b"\xff"):
        assert shown(value).isprintable()
    assert printable("\udcff\n") == "\\udcff\\n"
    assert shown(None) == "-"


def test_times_beyond_the_calendar_are_null() -> None:
    """A time that no calendar has is null in ISO form; its microseconds are always there."""
    assert iso(2**63 - 1) is None
    assert iso(-(2**63)) is None
    assert iso(0) == "1970-01-01T00:00:00.000000Z"


def test_a_record_beyond_the_calendar_can_be_read(run: Run, log: Path) -> None:
    """Any time that the log takes can be printed."""
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b"late", time=2**62)
    assert objects(run("read", log, "orders", "--json", "--start", -1).stdout)[0]["time_us"] == 2**62
    assert str(2**62) in run("read", log, "orders", "--start", -1).stdout


def test_raw_is_byte_by_byte(run: Run, log: Path) -> None:
    """With --raw the payloads come as they are, separated by newlines or, with --no-newline, by nothing."""
    with holdfast.open(log) as opened:
        opened.topic("raw").append_batch([b"\xff\x00", b"", b"x"])
    assert run("read", log, "raw", "--raw").stdout_bytes == b"\xff\x00\n\nx\n"
    assert run("read", log, "raw", "--raw", "--no-newline").stdout_bytes == b"\xff\x00x"


def test_raw_lines_can_be_appended_again(run: Run, log: Path) -> None:
    """What --raw prints, append --lines takes."""
    printed = run("read", log, "orders", "--raw").stdout_bytes
    assert run("append", "copy", "orders", "--lines", stdin=printed).exit_code == 0
    assert run("read", "copy", "orders", "--raw").stdout_bytes == printed


@pytest.mark.parametrize(
    "options",
    [
        ["--follow", "--end", "3"],
        ["--follow", "--reverse"],
        ["--raw", "--json"],
        ["--no-newline"],
        ["--limit", "-1"],
        ["--follow", "--until", "0"],
        ["--follow", "--position", "-"],
        ["--follow", "--format", "arrow"],
        ["--follow", "--key", "c"],
        ["--follow", "--bytes", "1"],
        ["--raw", "--format", "text"],
        ["--json", "--format", "arrow"],
        ["--format", "xml"],
        ["--position", "-", "--start", "3"],
        ["--position", "-", "--reverse", "--end", "3"],
        ["--since", "yesterday"],
        ["--until", "10x"],
        ["--bytes", "much"],
    ],
)
def test_options_that_contradict_are_wrong_usage(run: Run, log: Path, options: list[str]) -> None:
    """Options that make no sense together exit with 2 and print no record."""
    result = run("read", log, "orders", *options)
    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    "arguments", [["nowhere", "orders"], ["log", "nothing"], ["log", "orders", "--partition", "7"]]
)
def test_what_is_not_there_exits_with_1(run: Run, log: Path, arguments: list[str]) -> None:
    """A log, topic or partition that does not exist is an error with a hint, and nothing is created."""
    result = run("read", *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: " in result.stderr
    assert "hint: " in result.stderr
    assert not Path("nowhere").exists()


def test_reading_works_while_another_process_owns_the_log(run: Run, owner: Owner, log: Path) -> None:
    """A log that a service owns can be read, and what the service has committed is there."""
    assert owner.poll() is None
    assert payloads(run("read", log, "orders", "--json", "--start", -1).stdout) == ["from the owner"]


def test_follow_prints_what_comes(spawn: Spawn, log: Path) -> None:
    """With --follow new records are printed as they become durable, until the limit is reached."""
    process = spawn("read", log, "orders", "--follow", "--start", 9, "--limit", 2, "--raw")
    assert process.stdout is not None
    assert process.stdout.readline() == b"payload-9\n"
    with holdfast.open(log) as opened:
        opened.topic("orders").append(b"new")
        assert process.stdout.readline() == b"new\n"
    assert process.wait(PATIENCE) == 0


def test_follow_without_a_start_prints_only_what_is_new(spawn: Spawn, log: Path) -> None:
    """Without --start what was there before is not printed."""
    process = spawn("read", log, "orders", "--follow", "--limit", 1, "--raw")
    with holdfast.open(log) as opened:
        while process.poll() is None:  # nobody can tell from outside when it has begun to follow
            opened.topic("orders").append(b"new")
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
    assert process.stdout is not None
    assert (process.returncode, process.stdout.read()) == (0, b"new\n")


def test_an_interrupt_ends_quietly(spawn: Spawn, log: Path) -> None:
    """Ctrl-C exits with 130 and says nothing."""
    process = spawn("read", log, "orders", "--follow", "--start", 0)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=PATIENCE)
    assert (process.returncode, words) == (130, b"")


@pytest.mark.parametrize("options", [[], ["--json"], ["--raw"]])
def test_a_reader_that_has_seen_enough_ends_it_quietly(spawn: Spawn, tmp_path: Path, options: list[str]) -> None:
    """A broken pipe, as after `| head -1`, ends the output with exit code 0 and not a word."""
    with holdfast.open(tmp_path / "long") as opened:
        opened.topic("orders").append_batch([b"x" * 100] * 20_000)
    process = spawn("read", tmp_path / "long", "orders", *options)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    assert (process.wait(PATIENCE), process.stderr.read()) == (0, b"")


def test_damage_ends_the_output_with_3(run: Run, log: Path) -> None:
    """Records before the damage are printed, nothing damaged is, and the exit code is 3."""
    tamper(log, "UPDATE entries SET body = zeroblob(length(body)) WHERE seq=3")
    result = run("read", log, "orders", "--raw")
    assert (result.exit_code, result.stdout) == (3, "payload-0\npayload-1\npayload-2\npayload-3\n")
    assert "error: an entry's digest does not match" in result.stderr


def test_damage_is_reported_although_nobody_reads_any_more(spawn: Spawn, log: Path) -> None:
    """When damage and a broken pipe come together, the exit code is that of the damage."""
    tamper(log, "UPDATE entries SET body = zeroblob(length(body)) WHERE seq=3")
    process = spawn("read", log, "orders", "--raw")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == 3
    assert process.stderr.read().startswith(b"error: an entry's digest does not match")


def test_damage_elsewhere_is_reported_and_what_was_asked_for_is_printed(run: Run, log: Path) -> None:
    """A damaged head is reported on stderr with exit code 3; the records that can be proved are printed."""
    tamper(log, "UPDATE heads SET stamp = zeroblob(32) WHERE partition_id=2")
    result = run("read", log, "orders", "--raw")
    assert (result.exit_code, len(result.stdout.splitlines())) == (3, 10)
    assert "error: a head does not match its stamp" in result.stderr


def test_a_topic_that_damage_hides_is_damage(run: Run, log: Path) -> None:
    """When a topic is not found in a damaged log, the exit code speaks of the damage."""
    tamper(log, "UPDATE topics SET name = 'other' WHERE name = 'orders'")
    result = run("read", log, "orders")
    assert (result.exit_code, "error: there is no topic" in result.stderr) == (3, True)


def test_an_encrypted_log_needs_its_key(run: Run, secret_log: Path) -> None:
    """Without the key nothing is printed and the hint names the option; with it the records are."""
    refused = run("read", secret_log, "orders")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "hint: give --keyring env:NAME" in refused.stderr
    assert run("read", secret_log, "orders", "--raw", "--keyring", "file:keys").stdout == "the-secret-payload\n"
    keys = Path("keys").read_text()
    assert run("read", secret_log, "orders", "--raw", "--keyring", "env:KEYS", KEYS=keys).exit_code == 0


# -- across segments and tail -------------------------------------------------------------------------------------


def offsets(text: str) -> list[int]:
    return [found["offset"] for found in objects(text)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], range(35)),
        (["--start", "8", "--end", "12"], range(8, 12)),
        (["--start", "28"], range(28, 35)),
        (["--reverse", "--limit", "7"], range(34, 27, -1)),
        (["--since", "1970-01-01T00:00:19", "--until", "10m"], range(19, 35)),
        (["--since", "1970-01-01T00:00:19Z", "--until", "1970-01-01T01:00:21+01:00"], range(19, 22)),
        (["--since", "29000000", "--until", "31000000"], range(29, 32)),
        (["--until", "-1"], range(0)),
        (["--since", "1970-01-01T00:00:09.5Z", "--limit", "2"], range(10, 12)),
        (["--since", "9500000", "--until", "12000000", "--reverse"], range(12, 9, -1)),
        (["--bytes", "27B"], range(3)),
        (["--bytes", "1"], range(1)),
        (["--partition", "0", "--limit", "1"], range(1)),
    ],
)
def test_a_span_may_lie_anywhere(run: Run, sealed_log: Path, options: list[str], expected: range) -> None:
    """By offset, by time, by size and backwards, segments and tail are one stream."""
    result = run("read", sealed_log, "orders", "--json", *options)
    assert (result.exit_code, offsets(result.stdout)) == (0, list(expected))


@pytest.mark.parametrize("column", [None, "customer", "n", "code"])
def test_a_key_chooses_its_records(run: Run, tmp_path: Path, column: str | None) -> None:
    """Of raw topics as it is appended, of typed ones by the type of the key column; in segments and in the tail."""
    schema = pa.schema([("customer", pa.string()), ("n", pa.int64()), ("code", pa.binary())])
    with holdfast.open(tmp_path / "keyed") as log:
        topic = log.topic("t", partitions=3) if column is None else log.topic("t", schema=schema, key=column)
        for n in (41, 42, 41):
            if column is None:
                topic.append(b"%d" % n, key=f"{n}")
            else:
                topic.append([{"customer": f"{n}", "n": n, "code": b"%d" % n}])
            log.seal()
        topic.append(b"", key="42") if column is None else topic.append([{"customer": "42", "n": 42, "code": b"42"}])
    for key, count in (("41", 2), ("42", 2), ("43", 0)):
        result = run("read", tmp_path / "keyed", "t", "--key", key, "--json")
        assert (result.exit_code, result.stderr) == (0, "")
        assert len(objects(result.stdout)) == count
    newest = run("read", tmp_path / "keyed", "t", "--key", "42", "--reverse", "--limit", "1", "--json")
    assert len(objects(newest.stdout)) == 1
    if column == "n":
        assert run("read", tmp_path / "keyed", "t", "--key", "x").exit_code == 1


def test_a_key_of_a_topic_without_keys_is_refused(run: Run, tmp_path: Path) -> None:
    """With a hint; and a store is not asked for one."""
    with holdfast.open(tmp_path / "keyless") as log:
        log.topic("t", schema=pa.schema([("n", pa.int64())])).append([{"n": 1}])
    result = run("read", tmp_path / "keyless", "t", "--key", "1")
    assert result.exit_code == 1
    assert "key column" in result.stderr
    assert run("read", f"file://{tmp_path}/keyless/segments", "t", "--key", "1").exit_code == 2


def test_some_partitions_can_be_chosen(run: Run, tmp_path: Path) -> None:
    """--partition may be given repeatedly; one that does not exist exits with 1."""
    with holdfast.open(tmp_path / "log") as opened:
        topic = opened.topic("orders", partitions=3)
        for number in range(3):
            topic.append(b"%d" % number, partition=number)
    assert payloads(run("read", "log", "orders", "--json", "--partition", 2, "--partition", 0).stdout) == ["0", "2"]
    assert run("read", "log", "orders", "--partition", 2, "--partition", 7).exit_code == 1


@pytest.mark.parametrize("reverse", [[], ["--reverse"]])
def test_positions_lead_through_a_topic_page_by_page(run: Run, sealed_log: Path, reverse: list[str]) -> None:
    """With --position every page ends with where to go on; together the pages hold each record once."""
    found: list[int] = []
    position, exhausted = "-", False
    while not exhausted:
        *page, last = objects(
            run("read", sealed_log, "orders", "--json", "--limit", 9, "--position", position, *reverse).stdout
        )
        assert set(last) == {"position", "exhausted"}
        found += [line["offset"] for line in page]
        position, exhausted = last["position"], last["exhausted"]
        assert len(page) <= 9
    assert found == (list(range(34, -1, -1)) if reverse else list(range(35)))


def test_a_position_goes_on_with_what_came_since(run: Run, sealed_log: Path) -> None:
    """After the end, the position leads to what is appended later; sealing in between changes nothing."""
    first = run("read", sealed_log, "orders", "--raw", "--position", "-")
    assert len(first.stdout.splitlines()) == 35
    assert first.stderr == 'position: {"0":35}\n'
    with holdfast.open(sealed_log) as opened:
        opened.topic("orders").append(b"new")
        opened.seal()
    assert run("read", sealed_log, "orders", "--raw", "--position", '{"0":35}').stdout == "new\n"


def test_more_is_said_in_words(run: Run, sealed_log: Path) -> None:
    """In text the position is on stderr, and says when it was not all."""
    result = run("read", sealed_log, "orders", "--limit", 2, "--position", "-")
    assert result.stderr == 'position: {"0":2} (there is more)\n'


def test_a_position_that_is_none_is_refused(run: Run, sealed_log: Path) -> None:
    """What is no position exits with 1 and a hint."""
    result = run("read", sealed_log, "orders", "--position", "nonsense")
    assert (result.exit_code, "error: not a position" in result.stderr) == (1, True)


def test_what_expired_is_not_found(run: Run, sealed_log: Path) -> None:
    """Without --start a read begins with what is left; one that has expired exits with 1 and a hint."""
    with holdfast.open(sealed_log) as opened:
        opened.set_retention("orders", records_max=1)
        opened.retain()
    assert offsets(run("read", sealed_log, "orders", "--json").stdout) == list(range(20, 35))
    result = run("read", sealed_log, "orders", "--start", 5)
    assert (result.exit_code, "hint: read from start=20" in result.stderr) == (1, True)


def test_a_missing_segment_ends_the_output_with_3(run: Run, sealed_log: Path) -> None:
    """Records before a missing segment are printed; the hint says where the rest begins, and it does."""
    segment_files(sealed_log)[1].unlink()
    result = run("read", sealed_log, "orders", "--json")
    assert (result.exit_code, offsets(result.stdout)) == (3, list(range(10)))
    assert "a segment is missing offsets=10..19" in result.stderr
    assert "from start=20" in result.stderr
    assert offsets(run("read", sealed_log, "orders", "--json", "--start", 20).stdout) == list(range(20, 35))


def test_follow_passes_from_segments_to_the_tail(spawn: Spawn, sealed_log: Path) -> None:
    """With --follow --start what is sealed, what is not and what comes are one stream."""
    process = spawn("read", sealed_log, "orders", "--follow", "--start", 28, "--limit", 8, "--raw")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(7)] == [b"payload-%d\n" % n for n in range(28, 35)]
    with holdfast.open(sealed_log) as opened:
        opened.topic("orders").append(b"new")
    assert process.stdout.readline() == b"new\n"
    assert process.wait(PATIENCE) == 0


# -- rows and Arrow -----------------------------------------------------------------------------------------------


def test_rows_are_printed_as_json(run: Run, sealed_log: Path) -> None:
    """A row of a typed topic has its place, its time, and its columns under `row`."""
    result = run("read", sealed_log, "rows", "--json")
    assert (result.exit_code, [line["row"] for line in objects(result.stdout)]) == (
        0,
        [{"a": 0, "s": "zero"}, {"a": 1, "s": None}, {"a": 2, "s": "two"}],
    )
    assert objects(result.stdout)[2] | {"row": None} == {
        "topic": "rows",
        "partition": 0,
        "offset": 2,
        "time": "1970-01-01T00:00:02.000000Z",
        "time_us": 2000000,
        "row": None,
    }


def test_columns_can_be_chosen(run: Run, sealed_log: Path) -> None:
    """--columns reads only some; names that are none, and raw topics, are refused."""
    assert [line["row"] for line in objects(run("read", sealed_log, "rows", "--json", "--columns", "s").stdout)] == [
        {"s": "zero"},
        {"s": None},
        {"s": "two"},
    ]
    both = run("read", sealed_log, "rows", "--json", "--columns", "a,s", "--limit", 1)
    assert objects(both.stdout)[0]["row"] == {"a": 0, "s": "zero"}
    assert run("read", sealed_log, "rows", "--columns", "nothing").exit_code == 1
    assert run("read", sealed_log, "orders", "--columns", "a").exit_code == 1


def test_rows_are_no_payloads(run: Run, sealed_log: Path) -> None:
    """--raw of a typed topic is refused with what to take instead."""
    result = run("read", sealed_log, "rows", "--raw")
    assert (result.exit_code, result.stdout, "hint: take --json" in result.stderr) == (1, "", True)


@pytest.mark.parametrize(("topic", "rows"), [("orders", 35), ("rows", 3)])
def test_arrow_is_what_the_library_gives(run: Run, sealed_log: Path, topic: str, rows: int) -> None:
    """--format arrow is one IPC stream with the rows and columns of `read().to_arrow()`."""
    result = run("read", sealed_log, topic, "--format", "arrow", "--position", "-")
    table = pa.ipc.open_stream(result.stdout_bytes).read_all()
    with holdfast.open(sealed_log, read_only=True) as log:
        source = log.topic(topic) if topic == "orders" else log.topic(topic, schema="latest")
        assert table.equals(source.read().to_arrow())
    assert (result.exit_code, table.num_rows, "position: " in result.stderr) == (0, rows, True)


def test_a_row_beyond_the_calendar_can_be_read(run: Run, sealed_log: Path) -> None:
    """Any time that a typed topic takes can be printed."""
    with holdfast.open(sealed_log) as opened:
        opened.topic("rows", schema="latest").append({"a": 3}, time=2**62)
    (line,) = objects(run("read", sealed_log, "rows", "--json", "--start", -1).stdout)
    assert (line["time"], line["time_us"]) == (None, 2**62)
