"""Putting files in the place of others, by one object.

    intent (these numbers are being rewritten) → the files → one create-only rewrite → the intent goes

The rewrite is the only step that readers notice. Before it, files are in nobody's way, and the intent announces them;
after it, they are in effect. Two who want the same number: the first one wins, the other removes its files, which carry
its own nonce and so are nobody else's, and looks again. A reply that was lost is no loss: the object that is there is
compared by its nonce.

A process that dies leaves its intent and perhaps some files: the next holder of the number has closed the intent, and
`rewrite_sweep` removes what is left.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from holdfast.clock import Clock
from holdfast.errors import Corrupt, Unavailable
from holdfast.root.objects import documents
from holdfast.root.objects.documents import IntentDocument, RewriteDocument, RewrittenFile
from holdfast.root.root_store import RootStore
from holdfast.root.store_manifest import in_parallel
from holdfast.store import layout
from holdfast.store.port import Body, Store, StoreRefused, StoreUnavailable
from holdfast.store.repeated_create import create_repeatedly

logger = logging.getLogger("holdfast")


class NumberTaken(Exception):
    """Another process took the number: nothing was replaced, and what was written is removed."""


class Swap:
    """One rewrite of one partition, from its intent to its end."""

    def __init__(self, store: RootStore, log: str, topic: str, partition: int, number: int, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._place = (log, topic, partition)
        self.number = number
        self.nonce = clock.random_bytes(8).hex()
        self._key = layout.intent_key(topic, partition, number, self.nonce)

    def announce(self, runs: Sequence[tuple[int, int]]) -> None:
        """Say what is about to be rewritten; before the first file."""
        log, topic, partition = self._place
        intent = IntentDocument(
            log=log,
            topic=topic,
            partition=partition,
            number=self.number,
            nonce=self.nonce,
            runs=tuple(runs),
            begun_us=self._clock.now_us(),
            host=platform.node()[:255],
            pid=os.getpid(),
        )
        create_repeatedly(self._store, self._key, Body.of(documents.encode(intent)))

    def commit(
        self, outputs: Sequence[RewrittenFile], kept: Sequence[RewrittenFile] | None = None, *, may_repeat: bool = False
    ) -> RewriteDocument:
        """Swap: from now on these files are in effect; raises NumberTaken if another process was faster.

        `kept` are the files of earlier rewrites that stay, if they are to be recorded. `may_repeat`: files may have
        been made more than once, so the intent stays until a sweep has looked for others.
        """
        log, topic, partition = self._place
        rewrite = RewriteDocument(
            log=log,
            topic=topic,
            partition=partition,
            number=self.number,
            nonce=self.nonce,
            outputs=tuple(outputs),
            kept=None if kept is None else tuple(kept),
            rewritten_us=self._clock.now_us(),
        )
        self._require_there(outputs)
        key = layout.rewrite_key(topic, partition, self.number)

        def require_own(key: str) -> None:
            there = documents.decode(self._store.get(key), key, RewriteDocument)
            if (there.nonce, there.outputs) != (rewrite.nonce, rewrite.outputs):
                raise NumberTaken

        create_repeatedly(self._store, key, Body.of(documents.encode(rewrite)), require_own)
        if not may_repeat:
            self._remove([self._key])
        return rewrite

    def give_up(self, outputs: Sequence[RewrittenFile]) -> None:
        """Remove what was written: this rewrite will not be."""
        if self._remove([output.segment.key for output in outputs]):
            self._remove([self._key])

    def _remove(self, keys: Sequence[str]) -> bool:
        """Remove objects that nobody needs; where that fails, a sweep does it later."""
        try:
            self._store.delete(keys)
        except (StoreUnavailable, StoreRefused) as failure:
            logger.warning("cannot remove what is not needed: %s", failure.message, extra={"action": "left_over"})
            return False
        return True

    def _require_there(self, outputs: Sequence[RewrittenFile]) -> None:
        """The last look before the swap: a cleaning that knows nothing of intents may have removed a file."""
        sizes = in_parallel(lambda output: self._store.head(output.segment.key), outputs)
        for output, found in zip(outputs, sizes, strict=True):
            if found is None or found.size != output.segment.size:
                raise Unavailable(
                    f"a file was removed before it was in use key={output.segment.key}",
                    hint="something cleans the root without knowing it; nothing was replaced, compact again",
                )


def upload(files: Store, output: RewrittenFile, path: Path) -> None:
    """Bring a file to the store. Its name is its own: what is there already under it came from here."""
    segment = output.segment

    def require_whole(key: str) -> None:
        found = files.head(key)
        if found is not None and found.size != segment.size:
            raise Corrupt("a file is in the place of another one", path=key, topic=segment.topic)

    create_repeatedly(files, segment.key, Body.file(path, segment.size, bytes.fromhex(segment.sha256)), require_whole)
