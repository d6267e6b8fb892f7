"""A writer that stands still for a moment, so that what arrives meanwhile is one group."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast import Topic


@contextmanager
def stalled(topic: Topic) -> Iterator[None]:
    """Hold the writer inside a commit until the block ends; what is appended in the block queues up."""
    backend = topic._journal._backend
    inside, go_on = threading.Event(), threading.Event()
    begin = backend.begin

    def wait_then_begin() -> None:
        inside.set()
        go_on.wait(30)
        backend.begin = begin
        begin()

    backend.begin = wait_then_begin
    # A unit without operations makes the writer start a group without storing a record.
    topic._journal._queue.put_control([])
    assert inside.wait(30)
    try:
        yield
    finally:
        go_on.set()
