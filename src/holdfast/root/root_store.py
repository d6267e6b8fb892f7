"""A store as the root of one log: keys as the present layout spells them, objects proved when they are read.

All documents of a root are read and written through this, so that nobody can forget to sign or to prove, and nobody
else needs to know older layouts. Bytes of segments pass unchanged (`files`, for those who read in place). The first
request also reads the root's form, which costs one GET.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import NotFound
from holdfast.root.objects import documents, signature_place
from holdfast.root.objects.documents import LogDocument
from holdfast.root.root_format import RootForm
from holdfast.store import layout
from holdfast.store.port import Body, ObjectInfo, Store


class RootStore:
    """One root; a `Store`."""

    def __init__(self, files: Store, form: RootForm) -> None:
        self.files = files
        self.form = form

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
            raise NotFound(
                f"there is no log at this root store={self.url}",
                hint="give the URL of the store that the log ships to: s3://bucket/prefix or file:///directory;"
                " a log without a store is its own root, once something is sealed",
            ) from None
        return log

    def create(self, key: str, body: Body) -> None:
        """Create an object, signed if the root is."""
        body = self._form_for(key).signed(key, body)
        self.files.create(self.form.outside(key), body)

    def get(self, key: str, bytes_max: int | None = None) -> bytes:
        """The whole object, proved; raises NotFound, or Corrupt where it is not this log's."""
        form = self._form_for(key)
        most = None if bytes_max is None else bytes_max + signature_place.BYTES_MAX
        return form.proved(key, self.files.get(form.outside(key), most))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """A part of a segment."""
        return self.files.get_range(self._form_for(key).outside(key), start, length)

    def head(self, key: str) -> ObjectInfo | None:
        """What there is under a key; its size as it is stored."""
        form = self._form_for(key)
        found = self.files.head(form.outside(key))
        return None if found is None else form.inside(found)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Objects below a prefix, ordered by the keys that they are stored under."""
        form = self._form_for(prefix)
        listing = self.files.list(form.outside(prefix), None if after is None else form.outside(after))
        return (form.inside(info) for info in listing)

    def folders(self, prefix: str) -> Sequence[str]:
        """Folders right below a prefix."""
        return self.files.folders(self._form_for(prefix).outside(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects."""
        if keys:
            form = self._form_for(keys[0])
            self.files.delete([form.outside(key) for key in keys])

    def close(self) -> None:
        """Let go of connections and threads."""
        self.files.close()

    def _form_for(self, key: str) -> RootForm:
        """The root's form, read when this key depends on it; before there is a log, that of a new root."""
        if not self.form.format and key != layout.LOG and (not key or key.startswith(_DEPENDING)):
            try:
                self.get(layout.LOG)
            except NotFound:
                pass
        return self.form


_DEPENDING = (layout.EPOCHS, layout.FRONTIERS, layout.TAIL, layout.TOPICS)
