"""Writing as older versions did: in the first scheme, which holdfast only decrypts, without checksums or indexes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from holdfast.crypto.cipher import CountedCipher, Random, Source
from holdfast.segments.file import segment_writer


class CountedEncryptor(CountedCipher):
    """Nonces that count from zero. Clones of it would share them: never to be used for anything real."""

    def __init__(self, source: Source, random: Random | None = None) -> None:
        super().__init__(source)
        self._next = 0

    def encrypt(self, plaintext: bytes | memoryview, associated: bytes) -> bytes:
        count = self._next.to_bytes(8, "big")
        self._next += 1
        return count + self._aead.encrypt(self._domain + count, plaintext, associated)


_parquet_settings = segment_writer.parquet_settings


def _without_checksums(schema: pa.Schema, **how: Any) -> dict[str, Any]:
    return {**_parquet_settings(schema, **how), "write_page_checksum": False}


@contextmanager
def encrypting_as_before() -> Iterator[None]:
    """Whatever is encrypted meanwhile is encrypted in the first scheme, in files without page checksums."""
    with ExitStack() as patches:
        patches.enter_context(patch.object(segment_writer, "parquet_settings", _without_checksums))
        for module in ("vault", "segment_key"):
            patches.enter_context(patch(f"holdfast.crypto.{module}.encrypting_cipher", CountedEncryptor))
        yield


@contextmanager
def without_indexes() -> Iterator[None]:
    """Segments that are written meanwhile have no index of their keys."""
    with patch.object(segment_writer.KeyIndexBuilder, "result", lambda _: None):
        yield
