"""The format `deadly`: as ours, but at a step of a write a process of it is killed, once, or its whole session.

Classes are made in a function, so that they are pickled with all they have: Spark's workers do not know the tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

STEPS = (
    "before /segments/", "after /segments/", "before /_topic/", "after /_topic/", "before /_sink/", "after /_sink/",
    "after /0/_manifest/", "after /1/_manifest/", "committed",
)  # fmt: skip


def deadly(steps: dict[str, Path], whole_session: tuple[str, ...] = (), form: str = "deadly") -> type:
    """A source that dies at each of these steps, once: a file says that it has.

    In the steps of `whole_session` the whole session is killed, driver and JVM and workers, else the process alone.
    """
    from pyspark_holdfast.sink.spark_writers import StreamWriter
    from pyspark_holdfast.sink.write_options import parse_write_options
    from pyspark_holdfast.source import HoldfastSource

    markers = {step: str(marker) for step, marker in steps.items()}

    def session() -> Iterator[int]:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX" and int(fields[3]) == os.getsid(0) and int(folder.name) != os.getpid():
                yield int(folder.name)

    def reach(step: str, key: str = "") -> None:
        for known, marker in markers.items():
            when, _, part = known.partition(" ")
            if when != step or part not in key:
                continue
            try:
                os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            while known in whole_session and (alive := list(session())):
                for pid in alive:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            os.kill(os.getpid(), signal.SIGKILL)

    def arm() -> None:
        from holdfast.store.directory import DirectoryStore

        create = DirectoryStore.create
        if create.__name__ != "create":
            return

        def deadly_create(self: Any, key: str, body: Any) -> None:
            reach("before", key)
            create(self, key, body)
            reach("after", key)

        DirectoryStore.create = deadly_create  # type: ignore[method-assign]

    class DeadlyWriter(StreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            arm()
            return super().write(iterator)

        def commit(self, messages: Any, batchId: int) -> None:
            arm()
            super().commit(messages, batchId)
            reach("committed")

    class DeadlySource(HoldfastSource):
        @classmethod
        def name(cls) -> str:
            return form

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return DeadlyWriter(parse_write_options(self.options, is_stream=True), schema)

    return DeadlySource
