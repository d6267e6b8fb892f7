"""The objects of a store, as all parts of a pass look at them, report them and repair them.

Whoever finds something wrong offers a repair first (`try_remove`, `try_restore`); in a pass that only reports, the
answer is always no.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.errors import Corrupt, NotFound
from holdfast.reconcile.classify import Finding, Kind
from holdfast.reconcile.reconcile_pass import Pass
from holdfast.reconcile.reconcile_report import Repair
from holdfast.reconcile.store_repairs import StoreRepairs
from holdfast.root.objects import documents
from holdfast.root.root_store import RootStore
from holdfast.store import layout
from holdfast.store.port import ObjectInfo

Due = Callable[[bool], bytes | None]
"""What should stand under a key, given whether something stands there; None where that is not known."""


class StoreObjects:
    """The objects of one store, during one pass."""

    def __init__(self, work: Pass, store: RootStore, log_id: str, repairs: StoreRepairs) -> None:
        self.work = work
        self.store = store
        self.log_id = log_id
        self.repairs = repairs

    def count(self, name: str) -> None:
        """One more of these."""
        self.work.counts[name] += 1

    def find(self, kind: Kind, key: str, detail: str, **facts: Any) -> None:
        """Something is wrong with an object."""
        self.work.findings.append(Finding(kind, name=key, detail=detail, where="store", **facts))

    def find_stranger(self, info: ObjectInfo, **place: Any) -> None:
        """An object was listed that is not ours; if it is still there, it is reported."""
        self.count("files")
        if self.store.head(info.key) is not None:
            self.find("untracked", info.key, "not an object of holdfast", actual=info.size, **place)

    # -- repairs ------------------------------------------------------------------------------------------

    def try_remove(self, *keys: str) -> bool:
        """Remove these; whether that was done."""
        if self.work.fix and keys:
            self.repairs.remove(keys)
            for key in keys:
                self.work.repaired(Repair("removed", key))
        return self.work.fix

    def try_restore(self, key: str, data: bytes | None, *, damaged: bool) -> bool:
        """Write an object that is missing or damaged; whether that was done, and its key was not taken meanwhile."""
        if not self.work.fix or data is None or not self.repairs.write(key, data, damaged=damaged):
            return False
        self.work.repaired(Repair("restored", key))
        return True

    # -- looking ------------------------------------------------------------------------------------------

    def read(self, key: str) -> bytes | None:
        """An object's bytes; None when it is not there, no bytes when this log's key did not sign it."""
        try:
            return self.store.get(key)
        except NotFound:
            return None
        except Corrupt:
            return b""

    def is_forged(self, key: str) -> bool:
        """Whether something stands there, in a log with keys, that none of them signed: its name says nothing then."""
        return self.store.form.is_authentic and self.read(key) == b""

    def numbered(self, folder: str, **place: Any) -> dict[int, ObjectInfo]:
        """The objects of a folder by number; any other is not ours, and reported."""
        numbered: dict[int, ObjectInfo] = {}
        for info in self.store.list(folder):
            number = layout.parse_number(info.key)
            if number is not None and "/" not in info.key[len(folder) :]:
                numbered[number] = info
            else:
                self.find_stranger(info, **place)
        return numbered

    def decoded(
        self, key: str, kind: type[documents.Kind], due: Due = lambda is_there: None, **place: Any
    ) -> documents.Kind | None:
        """A document that must be there, whole and of this log. Otherwise it is repaired, if its content is known and
        repairs are wanted; or reported, and the answer is None.
        """
        self.count("files")
        data = self.read(key)
        try:
            document = None if data is None else documents.decode(data, key, kind)
            detail = "the object is not there" if document is None else "the object belongs to another log"
        except Corrupt:
            document, detail = None, "the object is damaged"
        if document is not None and document.log == self.log_id:
            return document
        content = due(data is not None) if self.work.fix else None
        if content is not None and self.try_restore(key, content, damaged=data is not None):
            return documents.decode(content, key, kind)
        problem: Kind = "missing" if data is None else "content_mismatch"
        self.find(problem, key, detail, actual=None if data is None else len(data), **place)
        return None
