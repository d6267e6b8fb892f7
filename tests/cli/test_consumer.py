"""`holdfast consumer`: who reads what, how far, and from where it goes on."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

import holdfast
from holdfast.testing import ManualClock

pytestmark = pytest.mark.disk


@pytest.fixture
def place(tmp_path):
    with holdfast.open(tmp_path / "data", clock=ManualClock()) as log:
        orders = log.topic("orders", partitions=2)
        for number in (0, 1):
            for n in range(5):
                orders.append(b"%d" % n, partition=number, time=datetime(2026, 1, 1 + n, tzinfo=UTC))
        with orders.consumer("billing") as consumer:
            for _ in range(7):
                next(consumer)
            consumer.commit()
        orders.consumer("audit").close()
        log.topic("notes").consumer("billing").close()
    return tmp_path / "data"


def lines(result):
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_list_shows_lag(run, place):
    found = lines(run("consumer", "list", place, "--json"))
    assert [(one["consumer"], one["topic"], one["lag"]) for one in found] == [
        ("audit", "orders", 10),
        ("billing", "notes", 0),
        ("billing", "orders", 3),
    ]
    assert found[2]["committed"].startswith("2023-11-14T")
    assert len(lines(run("consumer", "list", place, "--topic", "notes", "--json"))) == 1
    text = run("consumer", "list", place).stdout
    assert "billing" in text
    assert "lag" in text


def test_a_log_without_consumers_says_so(run, tmp_path):
    with holdfast.open(tmp_path / "data") as log:
        log.topic("orders").append(b"x")
    assert "no consumers" in run("consumer", "list", tmp_path / "data").stderr
    assert lines(run("status", tmp_path / "data", "--json"))[0]["consumers"] == {}


def test_show_has_every_partition(run, place):
    (found,) = lines(run("consumer", "show", place, "billing", "--topic", "orders", "--json"))
    assert sorted(line["position"] for line in found["partitions"]) == [2, 5]
    assert found["lag"] == sum(line["lag"] for line in found["partitions"]) == 3
    text = run("consumer", "show", place, "billing").stdout
    assert "orders" in text
    assert "notes" in text
    assert "does not wait for it" in text


@pytest.mark.parametrize(
    ("to", "positions"),
    [
        ("first", [0, 0]),
        ("next", [5, 5]),
        ("2", [2, 2]),
        ("-1", [4, 4]),
        ('{"0":1,"1":3}', [1, 3]),
        ("2026-01-03T00:00:00Z", [2, 2]),
    ],
)
def test_seek_moves_it_durably(run, place, to, positions):
    (found,) = lines(run("consumer", "seek", place, "billing", "orders", f"--to={to}", "--json"))
    assert [line["position"] for line in found["partitions"]] == positions
    (again,) = lines(run("consumer", "show", place, "billing", "--topic", "orders", "--json"))
    assert again == found


def test_seek_moves_one_partition(run, place):
    before = lines(run("consumer", "show", place, "audit", "--json"))[0]["partitions"]
    (found,) = lines(run("consumer", "seek", place, "audit", "orders", "--to", "next", "--partition", "1", "--json"))
    assert [line["position"] for line in found["partitions"]] == [before[0]["position"], 5]


def test_typed_topics_are_sought_in_too(run, tmp_path):
    import pyarrow as pa

    with holdfast.open(tmp_path / "data") as log:
        rows = log.topic("rows", schema=pa.schema([("n", pa.int64())]))
        rows.append([{"n": n} for n in range(5)])
        rows.consumer("billing").close()
    (found,) = lines(run("consumer", "seek", tmp_path / "data", "billing", "rows", "--to", "next", "--json"))
    assert found["lag"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("show", "biling"), 1, "did you mean 'billing'"),
        (("seek", "billing", "orders", "--to", "yesterday"), 1, "not a place"),
        (("seek", "billing", "orders", "--to", "99"), 1, "no offset 99"),
        (("seek", "biling", "orders", "--to", "first"), 1, "did you mean 'billing'"),
        (("seek", "billing", "orders", "--to", "first", "--partition", "7"), 1, "partition 7"),
        (("seek", "billing", "orders"), 2, "--to"),
        (("forget", "biling", "orders"), 1, "did you mean"),
        (("lst",), 2, "did you mean 'list'"),
    ],
)
def test_what_is_wrong_is_said(run, place, arguments, code, words):
    action, *rest = arguments
    result = run("consumer", action, place, *rest)
    assert result.exit_code == code
    assert words in result.stderr
    (found,) = lines(run("consumer", "show", place, "billing", "--topic", "orders", "--json"))
    assert found["lag"] == 3


def test_forget_lets_go_of_it(run, place):
    assert run("consumer", "forget", place, "billing", "orders").exit_code == 0
    assert [(one["consumer"], one["topic"]) for one in lines(run("consumer", "list", place, "--json"))] == [
        ("audit", "orders"),
        ("billing", "notes"),
    ]


def test_while_a_service_owns_the_log_it_is_shown_and_not_moved(run, place):
    with holdfast.open(place) as log:
        consumer = log.topic("orders").consumer("audit")
        next(consumer)
        consumer.commit()
        assert lines(run("consumer", "list", place, "--json"))[0]["lag"] == 9
        assert lines(run("status", place, "--json"))[0]["consumers"]["audit/orders"] == 9
        result = run("consumer", "seek", place, "audit", "orders", "--to", "first")
        assert result.exit_code == 1
        assert consumer.position != '{"0":0,"1":0}'


def test_an_encrypted_log_needs_its_key(run, tmp_path, keyring):
    keyring.save(tmp_path / "keys")
    with holdfast.open(tmp_path / "data", keyring=keyring) as log:
        orders = log.topic("orders")
        orders.append(b"x")
        orders.consumer("billing").close()
    assert "--keyring" in run("consumer", "list", tmp_path / "data").stderr
    assert lines(run("status", tmp_path / "data", "--json"))[0]["consumers"] is None
    ring = f"file:{tmp_path / 'keys'}"
    assert lines(run("consumer", "list", tmp_path / "data", "--json", "--keyring", ring))[0]["lag"] == 1
    assert lines(run("status", tmp_path / "data", "--json", "--keyring", ring))[0]["consumers"] == {"billing/orders": 1}
    assert "billing" in run("status", tmp_path / "data", "--keyring", ring).stdout


def test_retention_has_to_wait(run, place):
    policy = ("--topic", "orders", "--records", "1", "--wait-for", "billing", "--wait-for", "audit")
    assert run("retain", place, *policy).exit_code == 2
    assert run("retain", place, *policy, "--wait-limit", "30d").exit_code == 0
    assert [one["retention_waits"] for one in lines(run("consumer", "list", place, "--json"))] == [True, False, True]
    with holdfast.open(place) as log:
        log.seal()
        log.topic("orders").append_batch([b"x"] * 5, partition=0)
        log.seal()
    (report,) = lines(run("retain", place, "--dry-run", "--json"))
    assert report["removed"] == []
    assert report["bytes_waiting"] > 0
    assert "has not read yet" in run("retain", place).stdout
    assert run("retain", place, *policy, "--wait-limit", "1").exit_code == 0
    assert run("retain", "file:///nowhere", *policy, "--wait-limit", "1").exit_code == 2
