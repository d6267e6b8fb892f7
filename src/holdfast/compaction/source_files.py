"""The files of a run, opened one after the other; of a store that is far away, what comes next is fetched ahead.

Small files come in one request each, so the time of a run of thousands would be the time of their requests.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from holdfast.reader.object_bytes import is_in_place, open_bytes, opening
from holdfast.reader.prefetch import Prefetch, prefetching
from holdfast.root.objects.documents import SegmentDocument
from holdfast.segments.file.segment_reader import SegmentReader
from holdfast.store.port import Store
from holdfast.store.store_settings import StoreSettings


class SourceFiles:
    """Opens files of one root; `trusted` says that a key has proved what is known of them."""

    def __init__(self, files: Store, settings: StoreSettings, *, trusted: bool) -> None:
        self._files, self._settings, self._trusted = files, settings, trusted

    def __call__(self, segments: Sequence[SegmentDocument]) -> Generator[SegmentReader, None, None]:
        """Readers of these files, in order; raises FileNotFoundError where one is gone."""
        settings = self._settings
        if is_in_place(self._files) or not settings.prefetch_requests:
            yield from self._readers(segments, None)
            return
        parts = (opening(segment.key, segment.size) for segment in segments)
        with prefetching(
            self._files, parts, requests_max=settings.prefetch_requests, bytes_max=settings.prefetch_bytes
        ) as prefetch:
            yield from self._readers(segments, prefetch)

    def _readers(self, segments: Sequence[SegmentDocument], prefetch: Prefetch | None) -> Iterator[SegmentReader]:
        for segment in segments:
            of = segment.segment
            yield SegmentReader(
                segment.key,
                of.head,
                of.facts,
                None,
                trusted=self._trusted,
                source=open_bytes(self._files, segment.key, segment.size, prefetch),
                row_group_bytes_max=self._settings.read_bytes_max,
            )
