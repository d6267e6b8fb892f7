"""What every store promises, whatever it is made of: a directory, memory, an S3 server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.errors import Corrupt, Invalid, NotFound
from holdfast.store.port import AlreadyExists, Body, ObjectInfo, Store, StoreUnavailable

pytestmark = pytest.mark.store


def create(store: Store, key: str, data: bytes = b"x") -> None:
    store.create(key, Body.of(data))


def keys(found: object) -> list[str]:
    return [info.key for info in found]  # type: ignore[attr-defined]


def test_what_was_created_is_read_back(store: Store) -> None:
    create(store, "a/b/c.json", b"content")
    assert store.get("a/b/c.json") == b"content"
    info = store.head("a/b/c.json")
    assert info is not None
    assert (info.key, info.size) == ("a/b/c.json", 7)
    assert info.modified_us > 1_600_000_000_000_000


def test_a_key_is_taken_once(store: Store) -> None:
    """The second one is refused and changes nothing, also with the same bytes."""
    create(store, "a", b"first")
    for data in (b"second", b"first"):
        with pytest.raises(AlreadyExists):
            create(store, "a", data)
    assert store.get("a") == b"first"


@pytest.mark.parametrize("size", [10, 300_000])
def test_of_many_who_create_one_wins(store: Store, size: int) -> None:
    """Twelve at once on each of three keys: one succeeds, and his bytes are there."""
    threads, barrier = 12, threading.Barrier(12)
    raced = [f"race/{number}" for number in range(3)]

    def race(writer: int) -> list[str]:
        won = []
        for key in raced:
            barrier.wait()
            try:
                create(store, key, bytes([writer]) * size)
                won.append(key)
            except AlreadyExists:
                pass
        return won

    with ThreadPoolExecutor(threads) as pool:
        winners = list(pool.map(race, range(threads)))
    assert sorted(key for won in winners for key in won) == raced
    for writer, won in enumerate(winners):
        for key in won:
            assert store.get(key) == bytes([writer]) * size


def test_a_missing_key_is_reported_as_missing(store: Store) -> None:
    create(store, "a/b", b"x")
    for missing in ("b", "a/c", "nowhere/at/all"):
        assert store.head(missing) is None
        for read in (lambda key: store.get(key), lambda key: store.get_range(key, 0, 1), no_bytes(store)):
            with pytest.raises(NotFound, match="key="):
                read(missing)


def no_bytes(store: Store) -> Callable[[str], bytes]:
    return lambda key: store.get_range(key, 0, 0)


def test_a_folder_is_no_object(store: Store) -> None:
    create(store, "a/b", b"x")
    assert store.head("a") is None
    with pytest.raises(NotFound):
        store.get("a")


def test_ranges_have_the_bytes_that_were_asked_for(store: Store) -> None:
    create(store, "r", b"0123456789")
    assert store.get_range("r", 0, 10) == b"0123456789"
    assert store.get_range("r", 3, 4) == b"3456"
    assert store.get_range("r", 9, 1) == b"9"
    assert store.get_range("r", 5, 0) == b""


@pytest.mark.parametrize(("start", "length"), [(8, 3), (10, 1), (50, 1)])
def test_a_range_beyond_the_end_is_damage(store: Store, start: int, length: int) -> None:
    """Objects do not change: who knows a range knows the object, so it was cut."""
    create(store, "r", b"0123456789")
    with pytest.raises(Corrupt, match="shorter"):
        store.get_range("r", start, length)


def test_a_range_that_makes_no_sense_is_refused(store: Store) -> None:
    create(store, "r", b"0123456789")
    for start, length in ((-1, 2), (0, -1)):
        with pytest.raises(Invalid, match="not a range"):
            store.get_range("r", start, length)


def test_an_empty_object_is_an_object(store: Store) -> None:
    create(store, "empty", b"")
    assert store.get("empty") == b""
    info = store.head("empty")
    assert info is not None
    assert info.size == 0
    with pytest.raises(AlreadyExists):
        create(store, "empty", b"")


def test_eight_mebibytes_come_back_whole(store: Store) -> None:
    data = bytes(range(256)) * (8 * 2**20 // 256)
    create(store, "big", data)
    assert store.get("big") == data
    assert store.get_range("big", 2**22 - 3, 7) == data[2**22 - 3 : 2**22 + 4]
    info = store.head("big")
    assert info is not None
    assert info.size == len(data)


def test_a_body_may_be_a_file(store: Store, tmp_path: Path) -> None:
    """The object is a copy: what happens to the file afterwards does not concern it."""
    data, path = b"segment" * 300_000, tmp_path / "segment.parquet"
    path.write_bytes(data)
    store.create("s/1.parquet", Body.file(path, len(data), sha256(data).digest()))
    with path.open("r+b") as stream:
        stream.truncate(0)
    path.unlink()
    assert store.get("s/1.parquet") == data


@pytest.mark.parametrize("change", ["other byte", "shorter", "longer"])
def test_a_file_that_changed_is_not_stored(store: Store, tmp_path: Path, change: str) -> None:
    data, path = b"segment" * 300_000, tmp_path / "segment.parquet"
    path.write_bytes({"other byte": b"S" + data[1:], "shorter": data[:-1], "longer": data + b"!"}[change])
    with pytest.raises(StoreUnavailable) as caught:
        store.create("s/1.parquet", Body.file(path, len(data), sha256(data).digest()))
    assert caught.value.cause == "bad_digest"
    assert store.head("s/1.parquet") is None
    create(store, "s/1.parquet")


def test_a_file_that_is_gone_is_not_stored(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        store.create("s/1", Body.file(tmp_path / "gone", 3, bytes(32)))
    assert caught.value.cause == "disk"
    assert store.head("s/1") is None


def test_listings_are_ordered_and_go_through_all_levels(store: Store) -> None:
    made = [f"t/{epoch:020d}/{seq:020d}.arrow" for epoch in (2, 10, 1) for seq in (30, 4, 200)]
    for key in [*made, "u/1", "log.json"]:
        create(store, key, key.encode())
    assert keys(store.list("t/")) == sorted(made)
    assert keys(store.list("")) == sorted([*made, "u/1", "log.json"])
    assert {info.key: info.size for info in store.list("t/")} == {key: len(key) for key in made}


def test_a_listing_begins_behind_a_key(store: Store) -> None:
    """Also behind one that is not there, and one of another level."""
    made = sorted(f"t/{epoch}/{seq:03d}" for epoch in (1, 2, 3) for seq in range(5))
    for key in made:
        create(store, key)
    for after in (*made, "t/1/0025", "t/0", "t/9", "a", "z"):
        assert keys(store.list("t/", after=after)) == [key for key in made if key > after], after


def test_a_prefix_is_a_folder_and_not_a_beginning(store: Store) -> None:
    for key in ("t/1/a", "t/10/a", "t1/a"):
        create(store, key)
    assert keys(store.list("t/1/")) == ["t/1/a"]
    assert keys(store.list("nothing/here/")) == []
    with pytest.raises(Invalid, match="prefix"):
        store.list("t/1")


def test_a_listing_tells_what_head_tells(store: Store) -> None:
    create(store, "t/1", b"123")
    assert list(store.list("t/")) == [store.head("t/1")]
    assert isinstance(next(store.list("t/")), ObjectInfo)


def test_more_objects_than_fit_a_page_are_all_listed(store: Store) -> None:
    made = [f"page/{number:05d}" for number in range(1_203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: create(store, key, b""), made))
    assert keys(store.list("page/")) == made
    assert keys(store.list("page/", after="page/01100")) == made[1_101:]
    store.delete(made)
    assert keys(store.list("page/")) == []


def test_deleted_objects_are_gone_and_deleting_again_is_no_error(store: Store) -> None:
    for key in ("d/1", "d/2", "e/1"):
        create(store, key)
    for _ in range(2):
        store.delete(["d/1", "e/1", "never/was"])
        assert keys(store.list("")) == ["d/2"]
    store.delete([])
    with pytest.raises(NotFound):
        store.get("d/1")
    create(store, "d/1", b"again")
    assert store.get("d/1") == b"again"


@pytest.mark.parametrize("topic", ["a", "A-b_c.d", "0", "_x", "a" * 200, "Z9.-_", "a.b-c_d.e"])
def test_keys_have_every_character_of_a_topic_name(store: Store, topic: str) -> None:
    key = f"topics/{topic}/0/_manifest/{7:020d}.json"
    create(store, key, topic.encode())
    assert store.get(key) == topic.encode()
    assert keys(store.list(f"topics/{topic}/0/_manifest/")) == [key]
    store.delete([key])
    assert store.head(key) is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", ".hidden", "a/.tmp", "a\0b", "a\n", "k" * 1025, "k" * 256]
)
def test_what_is_no_key_is_refused(store: Store, key: str) -> None:
    for ask in (
        lambda: create(store, key),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.head(key),
        lambda: store.delete([key]),
    ):
        with pytest.raises(Invalid, match="not a key"):
            ask()


def test_a_store_is_used_by_many_threads_at_once(store: Store) -> None:
    def work(thread: int) -> list[bytes]:
        read = []
        for number in range(15):
            key = f"threads/{thread}/{number:03d}"
            create(store, key, key.encode())
            assert store.head(key) is not None
            read.append(store.get(key))
            assert keys(store.list(f"threads/{thread}/"))[-1] == key
            if number % 3 == 0:
                store.delete([key])
        return read

    with ThreadPoolExecutor(8) as pool:
        for thread, read in enumerate(pool.map(work, range(8))):
            assert read == [f"threads/{thread}/{number:03d}".encode() for number in range(15)]
    assert len(list(store.list("threads/"))) == 8 * 10


def test_a_store_says_where_it_is(store: Store) -> None:
    assert store.url.startswith(("file:///", "memory://", "s3://logs/", "gs://logs/"))
    assert store.url in repr(store) or store.url.startswith(("file", "memory"))


def test_folders_right_below_a_prefix_are_named_once_and_nothing_deeper(store: Store) -> None:
    """What lies in them, and objects beside them, are not folders."""
    for key in ("topics/b/0/segments/1", "topics/a/_topic/1", "topics/a/_topic/2", "topics/plain", "topics-2/c/1"):
        store.create(key, Body.of(b"x"))
    assert list(store.folders("topics/")) == ["a", "b"]
    assert list(store.folders("topics/b/")) == ["0"]
    assert list(store.folders("")) == ["topics", "topics-2"]
    assert list(store.folders("nowhere/")) == []
