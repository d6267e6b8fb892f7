"""Writing as older versions did: in the first scheme of sealing, which holdfast only opens, without page checksums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from holdfast.crypto.cipher import CountedCipher, Random, Source
from holdfast.segments import file_writer


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
    """Whatever is sealed meanwhile is sealed in the first scheme, in files without page checksums."""
    with ExitStack() as patches:
        for settings in (file_writer._COMMON, file_writer._SEALED_SETTINGS):
            patches.enter_context(patch.dict(settings, write_page_checksum=False))
        for module in ("vault", "segment_key"):
            patches.enter_context(patch(f"holdfast.crypto.{module}.sealing_cipher", CountedSealer))
        yield
