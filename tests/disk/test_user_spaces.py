"""Spaces as programs use them: one item is one look, everything is proved, and nobody else's spaces are met."""

from __future__ import annotations

import threading

import apsw
import pytest
from blake3 import blake3

import holdfast
from holdfast import Corrupt, Invalid, Log
from holdfast.journal.space_access import SpaceAccess

pytestmark = pytest.mark.disk


@pytest.fixture
def loads(monkeypatch):
    """Gets the name of each space that is loaded as a whole."""
    found: list[str] = []
    load = SpaceAccess.load
    monkeypatch.setattr(SpaceAccess, "load", lambda self, name: (found.append(name), load(self, name))[1])
    return found


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_items_are_got_one_by_one_without_loading_the_others(open_log, keyring, loads, is_encrypted):
    """The first look at a space loads it; then one item is one row, whatever is put and deleted meanwhile."""
    ring = keyring if is_encrypted else None
    log = open_log(keyring=ring)
    space = log.space("s")
    assert (space.get("k"), space.items()) == (None, [])
    for n in range(50):
        space.put(f"{n}", b"body %d" % n)
    log.close()
    log = open_log(keyring=ring)
    space = log.space("s")
    loads.clear()
    assert space.get("7") == b"body 7"
    assert loads == ["space-keys", "space/s"]
    loads.clear()
    space.put("7", b"new")
    space.delete(b"8")
    assert [space.get(key) for key in ("7", "8", "9", "none")] == [b"new", None, b"body 9", None]
    space.drop()
    assert (space.get("9"), log.spaces()) == (None, [])
    space.put("9", b"anew")
    assert (space.get("9"), space.get("7"), space.items()) == (b"anew", None, [(b"9", b"anew")])
    assert loads == ["space/s"]


def test_keys_of_users_are_not_in_the_files_of_a_log_with_keys(open_log, keyring, tmp_path):
    """Neither as they are, nor so that names could be tried until one fits; in one space and in several, forever."""
    log = open_log(keyring=keyring)
    log.space("s").put("VISIBLE-1", b"VISIBLE-2")
    with log.transaction() as tx:
        tx.put("t", "VISIBLE-1", b"VISIBLE-3")
        tx.put("t", "other", b"x")
        tx.delete("t", "VISIBLE-4")
    assert log.space("t").items() == [(b"VISIBLE-1", b"VISIBLE-3"), (b"other", b"x")]
    log.space("t").drop()
    log.space("t").put("VISIBLE-1", b"again")
    log.close()
    log = open_log(keyring=keyring)
    assert (log.space("s").get("VISIBLE-1"), log.space("t").get("VISIBLE-1")) == (b"VISIBLE-2", b"again")
    log.close()
    stored = [file.read_bytes() for file in log.path.rglob("*") if file.is_file()]
    assert not any(b"VISIBLE" in content for content in stored)
    unsalted = blake3(b"VISIBLE-1").digest()[:16]
    assert not any(unsalted in content for content in stored)


def test_the_first_keys_of_two_threads_have_one_salt(open_log):
    log = open_log()
    barrier = threading.Barrier(4)

    def put(n: int) -> None:
        barrier.wait()
        log.space(f"s{n % 2}").put(f"k{n}", b"%d" % n)

    threads = [threading.Thread(target=put, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [log.space(f"s{n % 2}").get(f"k{n}") for n in range(4)] == [b"%d" % n for n in range(4)]


def test_names_of_users_meet_nobody_elses(open_log):
    """Spaces of channels and consumers are not listed, and a user's may be called like them."""
    log = open_log()
    channels = log.channels("alice")
    channels.ensure_channel("room")
    channels.wrap_outgoing_message(b"hello", "room", "m1")
    topic = log.topic("t")
    topic.append(b"x")
    consumer = topic.consumer("c")
    consumer.poll(1)
    consumer.commit()
    assert log.spaces() == []
    for name in ("consumers", "executions", "channel", "space"):
        log.space(name).put("k", name.encode())
    assert log.spaces() == ["channel", "consumers", "executions", "space"]
    assert [log.space(name).get("k") for name in log.spaces()] == [name.encode() for name in log.spaces()]
    assert consumer.committed == '{"0":1}'
    for name in ("", "a/b", "..", ".x", "ü", "x" * 201, 7, None, b"s"):
        with pytest.raises(Invalid, match="not a space name"):
            log.space(name)


def change(log: Log, sql: str) -> None:
    """Behind the back of a log that is open."""
    database = apsw.Connection(str(log.path / "durable.db"))
    database.set_busy_timeout(5000)
    database.execute(sql)
    database.close()


def where(log: Log, key: str) -> str:
    """Under which key an item of the space `s` lies in the database."""
    return f"x'{log._item_keys.stored_key('space/s', key.encode()).hex()}'"


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE space_items SET body = zeroblob(4) WHERE key = {a}",
        "DELETE FROM space_items WHERE key = {a}",
        "UPDATE space_items SET body = (SELECT body FROM space_items WHERE key = {b}) WHERE key = {a}",
        "UPDATE space_items SET number = 7 WHERE key = {a}",
        "UPDATE space_items SET key_epoch = 9 WHERE key = {a}",
    ],
)
def test_an_item_that_is_not_what_was_put_is_never_given(open_log, keyring, sql, is_encrypted):
    """Changed while the log is open, by a writer of its file: found when it is got, as when all are."""
    log = open_log(keyring=keyring if is_encrypted else None)
    space = log.space("s")
    space.put("a", b"one")
    space.put("b", b"two")
    assert space.get("a") == b"one"
    change(log, sql.format(a=where(log, "a"), b=where(log, "b")))
    with pytest.raises(Corrupt, match="space='space/s'"):
        space.get("a")
    with pytest.raises(Corrupt, match="space='space/s'"):
        space.items()
    assert space.get("b") == b"two"


def test_an_item_that_was_put_back_is_not_given(open_log):
    """An older body of the same item, which was genuine once."""
    log = open_log()
    space = log.space("s")
    space.put("a", b"old")
    a, c = where(log, "a"), where(log, "c")
    change(log, f"CREATE TABLE stolen AS SELECT * FROM space_items WHERE key = {a}")
    space.put("a", b"new")
    change(log, f"UPDATE space_items SET body = (SELECT body FROM stolen) WHERE key = {a}")
    with pytest.raises(Corrupt):
        space.get("a")
    change(log, f"DELETE FROM space_items WHERE key = {a}")
    with pytest.raises(Corrupt):
        space.get("a")
    change(log, f"INSERT INTO space_items SELECT space_id, {c}, number, key_epoch, body FROM stolen")
    with pytest.raises(Corrupt):
        space.get("c")


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_whole_space_that_was_put_back_or_removed_is_found(open_log, keyring, is_encrypted):
    """Row and items as they were before, or none of them: genuine once, and not what this process committed."""
    log = open_log(keyring=keyring if is_encrypted else None)
    space = log.space("s")
    space.put("a", b"old")
    change(log, "CREATE TABLE stolen_items AS SELECT * FROM space_items")
    change(log, "CREATE TABLE stolen AS SELECT * FROM spaces")
    space.put("a", b"new")
    space.put("b", b"more")
    change(log, "DELETE FROM space_items")
    change(log, "INSERT INTO space_items SELECT * FROM stolen_items")
    change(log, "DELETE FROM spaces")
    change(log, "INSERT INTO spaces SELECT * FROM stolen")
    for ask in (lambda: space.get("a"), lambda: space.get("b"), space.items):
        with pytest.raises(Corrupt, match="not as it was committed"):
            ask()
    change(log, "DELETE FROM spaces")
    for ask in (lambda: space.get("a"), space.items):
        with pytest.raises(Corrupt, match="not as it was committed"):
            ask()


def test_a_reader_that_gets_while_others_put_sees_one_or_the_other(open_log):
    """Never an error, never a mixture, and never something older than what was acknowledged before."""
    log = open_log()
    space = log.space("s")
    space.put("k", b"0")
    acked, problems, done = [0], [], threading.Event()

    def look() -> None:
        while not done.is_set():
            least = acked[0]
            try:
                found = int(space.get("k") or b"-1")
                assert found >= least, f"{found} was given after {least} was acknowledged"
                assert int(dict(space.items())[b"k"]) >= found
            except BaseException as problem:
                problems.append(problem)
                return

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(1, 300):
        with log.transaction() as tx:
            tx.put(space, "k", b"%d" % n)
            tx.put(space, f"other {n % 7}", b"x")
        acked[0] = n
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []


def test_spaces_do_not_outlive_their_database(open_log, tmp_path):
    """As the documentation says: a log whose database is made anew has its records, and no spaces."""
    log = open_log()
    with log.transaction() as tx:
        tx.append("t", b"x")
        tx.put("s", "k", b"v")
    log.seal()
    log.close()
    holdfast.rebuild(tmp_path / "log")
    again = open_log()
    assert ([record.payload for record in again.topic("t").read()], again.spaces()) == ([b"x"], [])
    again.space("s").put("k", b"w")
    assert again.space("s").get("k") == b"w"
