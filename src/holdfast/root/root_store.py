"""A store as the root of one log: objects are signed when they are written, and proved when they are read.

All documents of a root are read and written through this, so that nobody can forget to sign or to prove. Bytes of
segments pass unchanged (`files`, for those who read in place). The first request also reads who vouches for the root
(`log.json`), which costs one GET.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.errors import NotFound
from holdfast.log_directory import is_log
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import LogDocument
from holdfast.root.root_trust import RootTrust
from holdfast.store import layout
from holdfast.store.address import parse_url
from holdfast.store.port import Body, ObjectInfo, Store


class RootStore:
    """One root; a `Store`."""

    def __init__(self, files: Store, trust: RootTrust) -> None:
        self.files = files
        self.trust = trust

    def __repr__(self) -> str:
        return f"RootStore({self.files!r})"

    @property
    def url(self) -> str:
        """Where it is, without secrets."""
        return self.files.url

    def log(self) -> LogDocument:
        """Whose root this is; raises NotFound."""
        try:
            log = documents.decode(self.get(layout.LOG), layout.LOG, LogDocument)
        except NotFound:
            address = parse_url(self.url)
            place = Path(address.place)
            # One that was settled there, and is its own root no more, ships to a store since.
            if address.scheme == "file" and is_log(place) and not (place / "segments" / layout.FRONTIERS).exists():
                raise NotFound(
                    f"nothing is settled in this log yet path={place}",
                    hint="seal it first: log.seal(), or `holdfast seal`; one that ships to a store is read there",
                ) from None
            raise NotFound(
                f"there is no log at this root store={self.url}",
                hint="give the URL of the store that the log ships to: s3://bucket/prefix or file:///directory;"
                " a log without a store is its own root, once something is sealed",
            ) from None
        return log

    def create(self, key: str, body: Body) -> None:
        """Create an object, signed if the root is."""
        self.files.create(key, self._trust_for(key).signed(key, body))

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object, proved; raises NotFound, or Corrupt where it is not this log's."""
        trust = self._trust_for(key)
        most = None if bytes_max is None else bytes_max + signature_place.BYTES_MAX
        return trust.proved(key, self.files.get(key, most))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of a segment."""
        return self.files.get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key; its size as it is stored."""
        return self.files.head(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, ordered by their keys."""
        return self.files.list(prefix, after)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix."""
        return self.files.folders(prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        if keys:
            self.files.delete(keys)

    def close(self) -> None:
        """Let go of connections and threads."""
        self.files.close()

    def _trust_for(self, key: str) -> RootTrust:
        """Who vouches for this key, read when that is not known yet; before there is a log, that of a new root."""
        if not self.trust.is_known and signature_place.is_signed_kind(key) and key != layout.LOG:
            try:
                self.get(layout.LOG)
            except NotFound:
                pass
        return self.trust
