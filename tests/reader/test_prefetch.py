"""What a reading asks a store for ahead of time: limits, order, failures, and how it ends. A store that counts."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast.clock import SystemClock
from holdfast.reader import prefetch as prefetching_module
from holdfast.reader.object_bytes import ByteRange
from holdfast.reader.prefetch import Prefetch, prefetching
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body, StoreRefused, StoreUnavailable

pytestmark = pytest.mark.unit

PATIENCE = 30
SIZE = 100
COUNT = 50


class CountingStore(MemoryStore):
    """Objects of 100 bytes; says what was asked, how much at once, and waits or fails where it is asked to."""

    def __init__(self) -> None:
        super().__init__("counting", SystemClock())
        self.asked: Counter[ByteRange] = Counter()
        self.asked_late = 0
        """Requests of the reading itself, which nobody made ahead."""
        self.at_once = self.at_once_most = 0
        self.unread = self.unread_most = 0
        """Bytes that were asked for and not taken yet."""
        self.fails: dict[str, list[Exception]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Semaphore(0)
        self._counting = threading.Lock()

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._counting:
            self.asked[ByteRange(key, start, start + length)] += 1
            self.asked_late += threading.current_thread() not in ours()
            self.at_once += 1
            self.at_once_most = max(self.at_once_most, self.at_once)
            self.unread += length
            self.unread_most = max(self.unread_most, self.unread)
        self.begun.release()
        try:
            assert self.gate.wait(PATIENCE)
            if self.fails.get(key):
                raise self.fails[key].pop(0)
            return super().get_range(key, start, length)
        finally:
            with self._counting:
                self.at_once -= 1

    def taken(self, length: int) -> None:
        with self._counting:
            self.unread -= length


@pytest.fixture
def store() -> CountingStore:
    made = CountingStore()
    for number in range(COUNT):
        made.create(f"segments/{number}", Body.of(content(number)))
    return made


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Whatever a test did, its threads end once the store answers."""
    yield
    for thread in ours():
        thread.join(PATIENCE)
        assert not thread.is_alive()


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-prefetch")]


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def part(number: int) -> ByteRange:
    return ByteRange(f"segments/{number}", 0, SIZE)


def parts(count: int = COUNT) -> list[ByteRange]:
    return [part(number) for number in range(count)]


def opened(store: CountingStore, requests: int = 4, bytes_max: int = 2**20) -> Prefetch:
    return Prefetch(store, parts(), requests_max=requests, bytes_max=bytes_max)


def read_all(store: CountingStore, **limits: int) -> list[bytes]:
    found = []
    with prefetching(store, parts(), **limits) as prefetch:
        for each in parts():
            found.append(bytes(prefetch.read(each)))
            store.taken(SIZE)
    return found


EVERYTHING = [content(number) for number in range(COUNT)]


@pytest.mark.parametrize("requests", [1, 3, 16])
def test_everything_comes_in_order_and_is_asked_for_once(store, requests):
    assert read_all(store, requests_max=requests, bytes_max=2**20) == EVERYTHING
    assert store.asked == Counter(parts())
    assert 1 <= store.at_once_most <= requests + 1  # and the reading's own


def test_requests_are_under_way_together(store):
    """All of them, before the first is answered; otherwise this would wait forever."""
    store.gate.clear()
    prefetch = opened(store, requests=4)
    reading = threading.Thread(target=prefetch.read, args=(part(0),))
    reading.start()
    for _ in range(1 + 4):
        assert store.begun.acquire(timeout=PATIENCE)
    assert store.at_once == 5
    store.gate.set()
    reading.join(PATIENCE)
    prefetch.close()


@pytest.mark.parametrize("bytes_max", [1, SIZE, 2 * SIZE, 7 * SIZE])
def test_bytes_ahead_are_limited(store, bytes_max):
    """Half of them for what comes later; the rest is for what is announced. What is read now comes on top."""
    assert read_all(store, requests_max=16, bytes_max=bytes_max) == EVERYTHING
    assert store.unread_most <= bytes_max // 2 + SIZE
    assert store.asked == Counter(parts())
    assert store.asked_late == (1 if bytes_max >= 2 * SIZE else COUNT)  # the very first, or all where there is no room


def test_what_is_announced_is_asked_for_at_once_and_has_room_of_its_own(store):
    prefetch = opened(store, bytes_max=6 * SIZE)
    prefetch.read(part(0))  # asks for 1, 2 and 3: half of the bytes
    assert set(store.asked) <= set(parts(4))
    prefetch.announce([part(40), part(41), part(42), part(43)])
    for each in (40, 41, 42):
        assert bytes(prefetch.read(part(each))) == content(each)
    assert bytes(prefetch.read(part(43))) == content(43)  # there was no room for it
    assert max(store.asked.values()) == 1
    prefetch.close()


def test_what_is_announced_and_never_read_makes_room_again(store):
    prefetch = opened(store, bytes_max=4 * SIZE)
    prefetch.announce([part(40), part(41), part(42), part(43)])
    prefetch.forget([part(40), part(41), part(42), part(43)])
    prefetch.announce([part(44)])
    assert bytes(prefetch.read(part(44))) == content(44)
    assert store.asked[part(44)] == 1
    prefetch.close()


def test_a_failure_comes_at_its_place(store):
    store.fails["segments/5"] = [StoreRefused("forbidden")] * 2
    prefetch = opened(store, requests=16)
    assert [bytes(prefetch.read(part(number))) for number in range(5)] == EVERYTHING[:5]
    with pytest.raises(StoreRefused, match="forbidden"):
        prefetch.read(part(5))
    prefetch.close()
    assert store.asked[part(5)] == 1


def test_an_object_that_is_not_there_comes_at_its_place(store):
    store.delete(["segments/3"])
    prefetch = opened(store)
    assert [bytes(prefetch.read(part(number))) for number in range(3)] == EVERYTHING[:3]
    with pytest.raises(FileNotFoundError, match="segments/3"):
        prefetch.read(part(3))
    prefetch.close()


def test_a_store_that_was_unavailable_is_asked_again_when_it_is_needed(store):
    for each in parts():
        store.fails[each.key] = [StoreUnavailable("slow down")]
    del store.fails["segments/0"]  # which the reading itself asks for
    assert read_all(store, requests_max=4, bytes_max=2**20) == EVERYTHING
    assert max(store.asked.values()) == 2


def test_a_store_that_stays_unavailable_says_so(store):
    store.fails["segments/2"] = [StoreUnavailable("first"), StoreUnavailable("second")]
    prefetch = opened(store)
    prefetch.read(part(0)), prefetch.read(part(1))
    with pytest.raises(StoreUnavailable, match="second"):
        prefetch.read(part(2))
    prefetch.close()


def test_nothing_is_asked_after_closing(store):
    prefetch = opened(store, requests=2)
    store.gate.clear()
    prefetch.announce(parts(10))
    for _ in range(2):
        assert store.begun.acquire(timeout=PATIENCE)
    prefetch.close()
    store.gate.set()
    for thread in ours():
        thread.join(PATIENCE)
    assert not ours()
    assert sum(store.asked.values()) == 2  # what was under way; the other eight are not asked for
    prefetch.close()
    prefetch.announce([part(40)])
    assert bytes(prefetch.read(part(30))) == content(30)  # those that read on are answered, one after the other
    assert sum(store.asked.values()) == 3


def test_a_reading_that_is_forgotten_ends_its_threads(store):
    def reading() -> Iterator[bytes]:
        with prefetching(store, parts(), requests_max=4, bytes_max=2**20) as prefetch:
            for each in parts():
                yield bytes(prefetch.read(each))

    abandoned = reading()
    assert next(abandoned) == content(0)
    assert ours()
    del abandoned
    gc.collect()
    for thread in ours():
        thread.join(PATIENCE)
    assert not ours()


def test_one_part_needs_no_thread(store):
    with prefetching(store, parts(1), requests_max=4, bytes_max=2**20) as prefetch:
        assert bytes(prefetch.read(part(0))) == content(0)
        assert not ours()


def test_a_system_without_threads_is_read_from_one_after_the_other(store, monkeypatch):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(prefetching_module.threading.Thread, "start", refuse)
    assert read_all(store, requests_max=4, bytes_max=2**20) == EVERYTHING
    assert store.asked == Counter(parts())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_reads_on(store):
    """With requests of its parent under way, whose threads it does not have."""
    prefetch = opened(store)
    prefetch.read(part(0))
    store.gate.clear()
    assert store.asked
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(PATIENCE)
            store.gate = threading.Event()
            store.gate.set()
            store._lock = store._counting = threading.Lock()  # type: ignore[assignment]  # of a real store: S3's own
            code = 0 if [bytes(prefetch.read(part(n))) for n in range(1, 8)] == EVERYTHING[1:8] else 2
            prefetch.close()
        finally:
            os._exit(code)
    store.gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bytes(prefetch.read(part(1))) == content(1)
    prefetch.close()


_EXITS: dict[str, str] = {
    "open": "",
    "hanging": "store.gate.clear(); prefetch.announce([part(40)])",
    "in atexit": "atexit.register(lambda: print(bytes(prefetch.read(part(2))) == content(2), flush=True))",
    "in a thread": "threading.Thread(target=late).start()",
}


@pytest.mark.parametrize("how", _EXITS)
def test_the_interpreter_ends_with_a_reading_open(how):
    program = f"""
        import atexit, threading, time
        from holdfast.store.port import Body
        from tests.reader.test_prefetch import COUNT, CountingStore, content, opened, part
        store = CountingStore()
        for number in range(COUNT):
            store.create(f"segments/{{number}}", Body.of(content(number)))
        def late():
            threading.main_thread().join()
            found = [bytes(prefetch.read(part(n))) for n in range(2, 20)]
            print(found == [content(n) for n in range(2, 20)], flush=True)
        prefetch = opened(store)
        prefetch.read(part(0))
        {_EXITS[how]}
        print("end", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == (["end"] if how in ("open", "hanging") else ["end", "True"])
