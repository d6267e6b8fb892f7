"""Sealing as the first scheme did it, which holdfast itself only opens: for golden files of that time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from holdfast.crypto.cipher import CountedCipher, Random, Source


class CountedSealer(CountedCipher):
    """Nonces that count from zero. Clones of it would share them: never to be used for anything real."""

    def __init__(self, source: Source, random: Random | None = None) -> None:
        super().__init__(source)
        self._next = 0

    def seal(self, plaintext: bytes | memoryview, associated: bytes) -> bytes:
        count = self._next.to_bytes(8, "big")
        self._next += 1
        return count + self._aead.encrypt(self._domain + count, plaintext, associated)


@contextmanager
def sealing_as_before() -> Iterator[None]:
    """Whatever is sealed meanwhile is sealed in the first scheme."""
    with ExitStack() as patches:
        for module in ("vault", "segment_key"):
            patches.enter_context(patch(f"holdfast.crypto.{module}.sealing_cipher", CountedSealer))
        yield
