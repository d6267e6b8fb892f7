"""Sinks on a store in memory: what Spark does, done by hand, with stores that die, lose replies and meet others.

Every row says which writer, batch and task it is of, so a reader can tell a whole batch from a part of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar
from uuid import uuid4

import pyarrow as pa

import holdfast
from holdfast.clock import SystemClock
from holdfast.root import shared_stores
from holdfast.root.objects.documents import SinkBatchDocument
from holdfast.root.sink_batches import newest_batch
from holdfast.sink import write_steps
from holdfast.sink.batch_commit import CommitResult
from holdfast.sink.sink_root import open_root
from holdfast.sink.sink_target import BatchMark, SinkTarget
from holdfast.sink.task_files import WrittenTask
from holdfast.sink.write_steps import WritePlan
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body, ObjectInfo, Store
from holdfast.store.store_settings import StoreSettings

CLOCK = SystemClock()
ROWS = pa.schema({"writer": pa.string(), "batch": pa.int64(), "task": pa.int64(), "row": pa.int64()})
TASKS = {0: 3, 2: 2}
"""Rows by task; task 1 has none."""

Result = TypeVar("Result")


class Died(BaseException):
    """The process was killed: no line of it runs any more that changes anything."""


class Seen(NamedTuple):
    """One request."""

    verb: str
    key: str


class Watched:
    """A store that calls somebody before and after each request."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.seen: list[Seen] = []
        self.before: Callable[[int, Seen], None] = lambda at, seen: None
        self.after: Callable[[int, Seen], None] = lambda at, seen: None

    @property
    def url(self) -> str:
        return self.store.url

    def _do(self, verb: str, key: str, call: Callable[[], Result]) -> Result:
        at, seen = len(self.seen), Seen(verb, key)
        self.before(at, seen)
        self.seen.append(seen)
        answer = call()
        self.after(at, seen)
        return answer

    def create(self, key: str, body: Body) -> None:
        self._do("create", key, lambda: self.store.create(key, body))

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        return self._do("get", key, lambda: self.store.get(key, bytes_max))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._do("get_range", key, lambda: self.store.get_range(key, start, length))

    def head(self, key: str) -> ObjectInfo | None:
        return self._do("head", key, lambda: self.store.head(key))

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        return self._do("list", prefix, lambda: iter(list(self.store.list(prefix, after))))

    def folders(self, prefix: str) -> Sequence[str]:
        return self._do("list", prefix, lambda: self.store.folders(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._do("delete", keys[0], lambda: self.store.delete(keys))

    def close(self) -> None:
        pass


def dying(store: Store, at: int, *, after: bool) -> Watched:
    """A store whose user is killed at its n-th request, before or after that is done."""
    watched = Watched(store)

    def strike(number: int, seen: Seen) -> None:
        if number >= at:
            raise Died

    if after:
        watched.after = strike
        watched.before = lambda number, seen: strike(number - 1, seen)
    else:
        watched.before = strike
    return watched


class Place:
    """A root in memory."""

    def __init__(self) -> None:
        name = uuid4().hex
        self.url = f"memory://{name}"
        self.store: Store = MemoryStore.named(name, CLOCK)
        self.use(self.store)

    def use(self, store: Store) -> None:
        """An opener of the root from now on gets this store."""
        shared_stores._opened[self.url, StoreSettings()] = store

    def objects(self, part: str = "") -> list[str]:
        return [info.key for info in self.store.list("") if part in info.key]

    def replace(self, key: str, data: bytes) -> None:
        self.store.delete([key])
        self.store.create(key, Body.of(data))

    def target(self, topic: str = "t", **values: object) -> SinkTarget:
        return SinkTarget(place=self.url, topic=topic, **values)  # type: ignore[arg-type]

    def rows(self, topic: str = "t", **options: object) -> pa.Table:
        return holdfast.read(self.url, topic, **options).to_arrow()  # type: ignore[arg-type]

    def counted(self, topic: str = "t") -> Counter[tuple[str, int]]:
        """Rows by writer and batch, as a reader sees them; each row once, each batch whole."""
        try:
            found = self.rows(topic).select(ROWS.names).to_pylist()
        except holdfast.NotFound:
            return Counter()
        each = Counter(tuple(row.values()) for row in found)
        assert not each or max(each.values()) == 1, "a row is there twice"
        return Counter((row["writer"], row["batch"]) for row in found)

    def newest(self, topic: str = "t", **values: object) -> SinkBatchDocument:
        root = open_root(self.target(topic, **values), CLOCK)
        found = newest_batch(root.store, root.log, topic)
        assert found is not None
        return found


def batch_of(writer: str, batch: int, task: int, rows: int) -> pa.RecordBatch:
    values = [{"writer": writer, "batch": batch, "task": task, "row": row} for row in range(rows)]
    return pa.RecordBatch.from_pylist(values, schema=ROWS)


def written(
    target: SinkTarget, writer: str, batch: int, tasks: Mapping[int, int] = TASKS, mark: BatchMark | None = None
) -> tuple[WritePlan, list[WrittenTask]]:
    """A batch whose tasks are done."""
    prepared = write_steps.prepare(target, ROWS, CLOCK)
    write_steps._seen.clear()  # each task in a process of its own
    done = [
        write_steps.write_task(prepared, task, [batch_of(writer, batch, task, rows)] if rows else [], mark, CLOCK)
        for task, rows in tasks.items()
    ]
    return prepared, done


def write(
    target: SinkTarget, writer: str, batch: int = 0, tasks: Mapping[int, int] = TASKS, *, is_marked: bool = True
) -> CommitResult:
    """A whole write, under the mark of its writer."""
    mark = BatchMark(writer, batch) if is_marked else None
    prepared, done = written(target, writer, batch, tasks, mark)
    return write_steps.commit(prepared, done, mark, CLOCK)
