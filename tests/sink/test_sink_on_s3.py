"""A sink on a real S3 server: batches of several writers, one after the other and at once, as in memory."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.root import shared_stores
from holdfast.store.store_settings import StoreSettings
from tests.sink.sinks import TASKS, Place, write
from tests.store.conftest import OpenS3, open_s3, prefix, s3_server

__all__ = ["open_s3", "prefix", "s3_server"]

pytestmark = pytest.mark.store

WHOLE = sum(TASKS.values())


def test_writers_at_once(open_s3: OpenS3) -> None:
    """Each batch once and whole; a batch that is written again is known."""
    place = Place()
    place.store = open_s3()
    place.url = place.store.url
    shared_stores._opened[place.url, StoreSettings()] = place.store
    with ThreadPoolExecutor(3) as threads:
        done = [threads.submit(write, place.target(), writer, batch) for batch in range(2) for writer in "abc"]
        assert sum(work.result().is_new for work in done) >= 3  # batch 1 of a writer may have come before its batch 0
    found = place.counted()
    assert set(found.values()) == {WHOLE}
    assert {writer for writer, _ in found} == set("abc")
    for writer in "abc":
        assert not write(place.target(), writer, 1).is_new
    assert place.counted() == found
    assert Counter(key.rpartition("/")[2] for key in place.objects("/_sink/")) == Counter(
        f"{number:020d}.json" for number in range(len(found))
    )
