"""`holdfast channel`: what is kept of reliable channels, in text and as JSON, beside the owner."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Keyring
from holdfast.channels import HistoryEntry, SdsMessage
from holdfast.channels.wire.nim import NIM
from tests.cli.conftest import Run, Spawn, objects, tamper

pytestmark = pytest.mark.disk

OWNER = """
import sys, holdfast
with holdfast.open(sys.argv[1]) as log:
    channels = log.channels("owner")
    channels.wrap_outgoing_message(b"from the owner", "room", "o1")
    print("kept", flush=True)
    sys.stdin.readline()
"""


def converse(log: holdfast.Log) -> None:
    """Alice sends a1 to a3 to `room`, of which Bob gets the first and the last; Alice alone is in `attic`."""
    alice, bob = log.channels("alice"), log.channels("bob")
    bob.ensure_channel("room")
    first, _, last = (alice.wrap_outgoing_message(b"content %d" % n, "room", f"a{n}") for n in (1, 2, 3))
    bob.unwrap_received_message(first)
    bob.unwrap_received_message(last)
    alice.ensure_channel("attic", dialect="rfc")
    alice.wrap_outgoing_message(b"\x1b[31m\xff", "attic", "x")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A log with three channels of two participants."""
    path = tmp_path / "chat"
    with holdfast.open(path) as log:
        converse(log)
    return path


# -- list -----------------------------------------------------------------------------------------------------


def test_channels_are_listed_in_json(run: Run, kept: Path) -> None:
    """Each channel is one object with its participant, its format, and the sizes of what it holds."""
    result = run("channel", "list", kept, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = objects(result.stdout)
    assert [(line["participant"], line["channel"], line["dialect"]) for line in found] == [
        ("alice", "attic", "rfc"),
        ("alice", "room", "nim"),
        ("bob", "room", "nim"),
    ]
    sizes = ("history", "unacknowledged", "waiting", "missing")
    assert [[line[size] for size in sizes] for line in found] == [[1, 1, 0, 0], [3, 3, 0, 0], [1, 0, 1, 1]]
    assert found[2]["lamport"] > found[1]["lamport"] > 1_600_000_000


def test_the_list_is_a_table_in_text_and_can_be_of_one_participant(run: Run, kept: Path) -> None:
    """In text each channel is a row; --participant chooses."""
    lines = run("channel", "list", kept).stdout.splitlines()
    assert lines[0].split()[:3] == ["participant", "channel", "dialect"]
    assert len(lines) == 4
    (line,) = objects(run("channel", "list", kept, "--participant", "bob", "--json").stdout)
    assert line["participant"] == "bob"


def test_a_log_without_channels_says_so(run: Run, log: Path) -> None:
    """No channels is no error, and no data."""
    result = run("channel", "list", log)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no channels\n")


# -- show -----------------------------------------------------------------------------------------------------


def test_what_waits_and_what_is_missing_is_shown(run: Run, kept: Path) -> None:
    """Buffers come with ages, missing messages with whom to ask and when that is due; contents are not shown."""
    result = run("channel", "show", kept, "room", "--participant", "bob", "--json")
    assert result.exit_code == 0
    assert "content" not in result.stdout
    (report,) = objects(result.stdout)
    (waiting,), (missing,), (request,) = report["waiting"], report["missing"], report["requests"]
    assert (waiting["message_id"], waiting["sender_id"], waiting["bytes"], waiting["missing"]) == (
        "a3",
        "alice",
        9,
        ["a2"],
    )
    assert 0 <= waiting["age_seconds"] < 60
    assert (missing["message_id"], missing["sender_id"], missing["waiting"]) == ("a2", "alice", 1)
    assert (request["message_id"], request["sender_id"]) == ("a2", "alice")
    assert 0 < missing["due_seconds"] <= 300
    assert missing["due_seconds"] == request["due_seconds"]
    assert (report["unacknowledged"], report["responses"], report["met"], report["history"]) == ([], [], [], 1)


def test_what_is_not_acknowledged_is_shown(run: Run, kept: Path) -> None:
    """Own messages come with their age and how often they were sent again."""
    (report,) = objects(run("channel", "show", kept, "room", "--participant", "alice", "--json").stdout)
    assert [line["message_id"] for line in report["unacknowledged"]] == ["a1", "a2", "a3"]
    assert {(line["attempts"], line["possible_acks"], line["bytes"]) for line in report["unacknowledged"]} == {
        (0, 0, 9)
    }
    assert all(0 <= line["age_seconds"] < 60 for line in report["unacknowledged"])


def test_show_in_text_has_a_table_for_each_buffer_that_is_not_empty(run: Run, kept: Path) -> None:
    """What is empty is left out."""
    text = run("channel", "show", kept, "room", "--participant", "bob").stdout
    for title in ("waiting for others: 1", "missing: 1", "to be asked for: 1"):
        assert f"\n{title}\n" in text
    assert "not acknowledged" not in text


def test_what_is_due_for_others_and_what_is_met_is_shown(run: Run, kept: Path) -> None:
    """Answers that are due, ids that count as met, and hints for what is missing; what waits itself is not missing."""
    with holdfast.open(kept) as log:
        bob = log.channels("bob")
        bob.ensure_channel("room")
        bob.mark_dependencies_met(["elsewhere"], "room")
        bob.unwrap_received_message(from_carol("c1", HistoryEntry("gone", b"\xff", "dave"), asks_for="a1"))
        bob.unwrap_received_message(from_carol("c2", HistoryEntry("c1"), asks_for="a1"))
    (report,) = objects(run("channel", "show", kept, "room", "--participant", "bob", "--json").stdout)
    assert [(line["message_id"], line["sender_id"]) for line in report["responses"]] == [("a1", "alice")]
    assert report["met"] == ["elsewhere"]
    assert [line["message_id"] for line in report["waiting"]] == ["a3", "c1", "c2"]
    assert [line["message_id"] for line in report["missing"]] == ["a2", "gone"]
    hint = report["missing"][1]
    assert (hint["sender_id"], hint["retrieval_hint"], hint["retrieval_hint_encoding"]) == ("dave", "/w==", "base64")


def from_carol(message_id: str, cause: HistoryEntry, asks_for: str) -> bytes:
    """A message that depends on another one, and asks for one of Alice's."""
    wanted = HistoryEntry(asks_for, b"", "alice")
    return NIM.encode(SdsMessage(message_id, "room", 1, b"x", "carol", (cause,), b"", (wanted,)))


# -- history --------------------------------------------------------------------------------------------------


def test_history_is_printed_oldest_first(run: Run, kept: Path) -> None:
    """Each message is one object with its content and what it names as its causes."""
    found = objects(run("channel", "history", kept, "room", "--participant", "alice", "--json").stdout)
    assert [(line["message_id"], line["sender_id"], line["bytes"], line["content"]) for line in found] == [
        (f"a{n}", "alice", 9, f"content {n}") for n in (1, 2, 3)
    ]
    assert [line["causes"] for line in found] == [[], ["a1"], ["a1", "a2"]]
    assert [line["lamport"] for line in found] == sorted(line["lamport"] for line in found)


def test_the_newest_messages_can_be_asked_for(run: Run, kept: Path) -> None:
    """--limit takes from the end."""
    text = run("channel", "history", kept, "room", "--participant", "alice", "--limit", 2).stdout
    assert [line.split()[1] for line in text.splitlines()] == ["a2", "a3"]


def test_content_that_is_no_text_is_base64(run: Run, kept: Path) -> None:
    """Neither JSON nor a terminal gets bytes that would steer it; the channel of one participant needs no name."""
    (line,) = objects(run("channel", "history", kept, "attic", "--json").stdout)
    assert (line["content"], line["content_encoding"]) == ("G1szMW3/", "base64")
    assert "base64:G1szMW3/" in run("channel", "history", kept, "attic").stdout


# -- all of them ----------------------------------------------------------------------------------------------


def test_the_channel_of_several_participants_needs_a_name(run: Run, kept: Path) -> None:
    """Who they are is in the hint."""
    result = run("channel", "show", kept, "room")
    assert (result.exit_code, "2 participants" in result.stderr, "alice, bob" in result.stderr) == (1, True, True)


@pytest.mark.parametrize("arguments", [["cellar"], ["room", "--participant", "carol"]])
def test_what_is_not_kept_is_not_found(run: Run, kept: Path, arguments: list[str]) -> None:
    """An unknown channel or participant is exit code 1, with the command that lists them."""
    result = run("channel", "history", kept, *arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"holdfast channel list {kept}" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [["list", "log", "room"], ["show", "log"], ["history", "log"], ["list", "log", "--limit", "1"], ["drop", "log"]],
)
def test_wrong_usage_is_reported(run: Run, arguments: list[str]) -> None:
    """An argument too many, one too few, or one that does nothing is exit code 2."""
    assert run("channel", *arguments).exit_code == 2


def test_it_works_beside_the_owner(run: Run, spawn: Spawn, tmp_path: Path) -> None:
    """While a process owns the log its channels are shown as they are kept."""
    process = spawn(tmp_path / "owned", code=OWNER)
    assert process.stdout is not None
    assert process.stdout.readline() == b"kept\n"
    (line,) = objects(run("channel", "list", tmp_path / "owned", "--json").stdout)
    assert (line["participant"], line["unacknowledged"]) == ("owner", 1)
    assert (
        objects(run("channel", "history", tmp_path / "owned", "room", "--json").stdout)[0]["content"]
        == "from the owner"
    )
    assert process.poll() is None


def test_an_encrypted_log_needs_its_key(run: Run, tmp_path: Path, keyring: Keyring) -> None:
    """Without the key it is refused, with the option to give; with it everything is shown."""
    keyring.save(tmp_path / "keys")
    with holdfast.open(tmp_path / "secret", keyring=keyring) as log:
        converse(log)
    refused = run("channel", "list", tmp_path / "secret")
    assert (refused.exit_code, "--keyring" in refused.stderr, refused.stdout) == (1, True, "")
    shown = run(
        "channel", "history", tmp_path / "secret", "room", "--participant", "bob", "--keyring", f"file:{tmp_path}/keys"
    )
    assert (shown.exit_code, "content 1" in shown.stdout) == (0, True)


def test_a_damaged_channel_is_reported_and_the_others_are_listed(run: Run, kept: Path) -> None:
    """A changed item is exit code 3, in the list and where that channel is asked for; nothing of it is shown."""
    tamper(kept, "UPDATE space_items SET number = number + 1 WHERE space_id = (SELECT min(id) FROM spaces)")
    listed = run("channel", "list", kept, "--json")
    assert (listed.exit_code, len(objects(listed.stdout)), len(objects(listed.stderr))) == (3, 2, 1)
    lost = {("alice", "attic"), ("alice", "room"), ("bob", "room")} - {
        (line["participant"], line["channel"]) for line in objects(listed.stdout)
    }
    ((participant, channel),) = lost
    assert repr(channel) in objects(listed.stderr)[0]["message"]
    for action in ("show", "history"):
        asked = run("channel", action, kept, channel, "--participant", participant)
        assert (asked.exit_code, asked.stdout) == (3, "")


def test_ids_that_are_no_text_are_shown_escaped_and_found(run: Run, tmp_path: Path) -> None:
    """Ids may be any bytes: JSON has escapes for those that are no UTF-8."""
    with holdfast.open(tmp_path / "odd") as log:
        log.channels("p/\udcff").wrap_outgoing_message(b"x", "c\udc80", "m\x1b\udc81")
    (line,) = objects(run("channel", "list", tmp_path / "odd", "--json").stdout)
    assert (line["participant"], line["channel"]) == ("p/\\udcff", "c\\udc80")
    text = run("channel", "history", tmp_path / "odd", "c\udc80").stdout
    assert "m\\x1b\\udc81" in text
    assert objects(run("channel", "history", tmp_path / "odd", "c\udc80", "--json").stdout)[0]["bytes"] == 1


def test_it_is_shown_whether_a_channel_has_a_key(run: Run, tmp_path: Path) -> None:
    """Without the key itself, and without needing it."""
    with holdfast.open(tmp_path / "chat") as log:
        alice = log.channels("alice", keys={"secret": holdfast.Keyring.generate()})
        for name in ("open", "secret"):
            alice.wrap_outgoing_message(b"content", name)
    found = objects(run("channel", "list", tmp_path / "chat", "--json").stdout)
    assert {line["channel"]: line["sealed"] for line in found} == {"open": False, "secret": True}
    (shown,) = objects(run("channel", "show", tmp_path / "chat", "secret", "--json").stdout)
    assert shown["sealed"] is True
    assert "every message is encrypted" in run("channel", "show", tmp_path / "chat", "secret").stdout
