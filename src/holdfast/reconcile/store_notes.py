"""What a pass over a store has found so far; and looking at objects in the ways that all its parts share."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

from holdfast.errors import Corrupt, NotFound
from holdfast.reconcile.classify import Finding, Kind
from holdfast.reconcile.local_pass import Repair
from holdfast.root.objects import documents
from holdfast.root.root_store import RootStore
from holdfast.store import layout
from holdfast.store.port import ObjectInfo

logger = logging.getLogger("holdfast.shipping")

Mend = Callable[[bool], bytes | None]
"""Writes an object that is missing or (True) damaged; its bytes, or None where it was not written."""


class StoreNotes:
    """Findings, repairs and counts of one pass over one store."""

    def __init__(self, store: RootStore, log_id: str) -> None:
        self.store = store
        self.log_id = log_id
        self.findings: list[Finding] = []
        self.repairs: list[Repair] = []
        self.counts: Counter[str] = Counter()
        """By the names that they have in the report."""

    def find(self, kind: Kind, key: str, detail: str, **facts: Any) -> None:
        """Something is wrong with an object."""
        self.findings.append(Finding(kind, name=key, detail=detail, where="store", **facts))

    def find_stranger(self, info: ObjectInfo, **place: Any) -> None:
        """An object was listed that is none of ours; if it is still there, it is reported."""
        self.counts["files"] += 1
        if self.store.head(info.key) is not None:
            self.find("untracked", info.key, "not an object of holdfast", actual=info.size, **place)

    def repaired(self, action: Literal["removed", "restored"], key: str) -> None:
        """Something was repaired."""
        self.repairs.append(Repair(action, key))
        logger.warning(
            "reconciliation %s an object of the store key=%s", action, key,
            extra={"action": f"reconcile_{action}", "path": key},
        )  # fmt: skip

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
        """The objects of a folder by number; what has none is a stranger."""
        numbered: dict[int, ObjectInfo] = {}
        for info in self.store.list(folder):
            number = layout.parse_number(info.key)
            if number is not None and "/" not in info.key[len(folder) :]:
                numbered[number] = info
            else:
                self.find_stranger(info, **place)
        return numbered

    def decoded(
        self, key: str, kind: type[documents.Kind], mend: Mend | None = None, **place: Any
    ) -> documents.Kind | None:
        """A document that must be there, whole and of this log; otherwise that is found, and the answer is None.

        `mend` may repair it: it is told whether something stands there, and says what it wrote.
        """
        data = self.read(key)
        self.counts["files"] += 1
        if data is None:
            problem: tuple[Kind, str] = ("missing", "the object is not there")
        else:
            try:
                document = documents.decode(data, key, kind)
            except Corrupt:
                problem = ("content_mismatch", "the object is damaged")
            else:
                if document.log == self.log_id:
                    return document
                problem = ("content_mismatch", "the object belongs to another log")
        mended = None if mend is None else mend(data is not None)
        if mended is not None:
            self.repaired("restored", key)
            return documents.decode(mended, key, kind)
        self.find(problem[0], key, problem[1], actual=None if data is None else len(data), **place)
        return None
