"""Logs that ship, to stores that can be looked into and spoiled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import holdfast
from holdfast import Log, NotFound, Settings
from holdfast.clock import Clock, SystemClock
from holdfast.crypto.keyring import Keyring
from holdfast.crypto.signatures import Signer
from holdfast.log.upkeep import store_binding
from holdfast.root.objects import commit_batch, documents, signature_place
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import ManifestDocument, TopicDocument
from holdfast.shipping import session
from holdfast.shipping.cleanup.janitor import Janitor
from holdfast.store import layout, memory, store_kinds
from holdfast.store.port import Body, ObjectInfo, Store
from holdfast.store.store_kinds import open_store
from holdfast.store.store_settings import StoreSettings
from tests.shipping.flaky import Faults, FlakyStore

FIRST_CONTACT_S = store_binding._FIRST_CONTACT_S
"""How long opening really waits for the store's first word; here it does not wait that long."""

QUICK = {"retry_base_delay_ms": 1, "retry_delay_max_ms": 10, "shipped_timeout_ms": 20_000}
"""Retries that do not keep a test waiting."""


class Root:
    """One root of a store, seen from outside of the log that ships there."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.faults = Faults()
        """What stores meet that are opened from now on."""
        self.store: Store = open_store(url, StoreSettings(), SystemClock())

    def keys(self, prefix: str = "") -> list[str]:
        return [info.key for info in self.infos() if info.key.startswith(prefix)]

    def infos(self) -> list[ObjectInfo]:
        return list(self.store.list(""))

    def objects(self) -> dict[str, bytes]:
        """All but frontiers, which a log writes, and replaces, when it comes to it."""
        return {key: data for key, data in self.everything().items() if not key.startswith(layout.FRONTIERS)}

    def everything(self) -> dict[str, bytes]:
        """What a copy of the store has; taken again where an object goes meanwhile, which has a successor then."""
        while True:
            with suppress(NotFound):
                return {key: self.store.get(key) for key in self.keys()}

    def replace(self, key: str, data: bytes) -> None:
        """Put other bytes under a key, as a writer to the bucket can."""
        self.store.delete([key])
        self.store.create(key, Body.of(data))

    def batches(self) -> list[CommitBatch]:
        """The commit batches that are there, by epoch and sequence number."""
        keys = [key for key in self.keys(layout.TAIL) if layout.parse_batch_key(key) is not None]
        return [commit_batch.decode(self.bare(key), key) for key in keys]

    def sign(self, key: str, keyring: Keyring) -> None:
        """Sign an object with the log's own key, whatever it says: what lies behind the signature must hold, too."""
        data, log = self.bare(key), json.loads(self.bare(layout.LOG))["log"]
        signer = Signer.of(keyring)
        assert signer is not None
        self.store.delete([key])
        self.store.create(key, Body.of(signature_place.attach(key, data, signer.sign(log, key, data))))

    def bare(self, key: str) -> bytes:
        """An object without its signature, if it has one."""
        return signature_place.detach(key, self.store.get(key))[0]

    def manifest(self, topic: str, partition: int = 0) -> list[ManifestDocument]:
        keys = self.keys(layout.manifest_folder(topic, partition))
        return [documents.decode_manifest(self.bare(key), key) for key in keys]

    def topic_documents(self, topic: str) -> list[TopicDocument]:
        keys = self.keys(layout.topic_folder(topic))
        return [documents.decode(self.bare(key), key, TopicDocument) for key in keys]

    def segments(self, topic: str, partition: int = 0) -> list[int]:
        """Numbers of the segment files that are there."""
        names = [layout.parse_segment_name(key.rpartition("/")[2]) for key in self.keys(f"topics/{topic}/{partition}/")]
        return [name.number for name in names if name is not None]

    def numbers(self, folder: str) -> list[int]:
        """Numbers of the numbered objects in a folder."""
        return [number for key in self.keys(folder) if (number := layout.parse_number(key)) is not None]


@pytest.fixture(autouse=True)
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Root]]:
    """Every store that a log opens goes through the faults of its root; at the end all is well again."""
    roots: dict[str, Root] = {}
    open_any_store = store_kinds.open_any_store

    def open_flaky(url: str, settings: StoreSettings, clock: Clock) -> Store:
        store = open_any_store(url, settings, clock)
        return FlakyStore(store, roots[url].faults) if url in roots else store

    monkeypatch.setattr(store_kinds, "open_any_store", open_flaky)
    monkeypatch.setattr(store_binding, "_FIRST_CONTACT_S", 0.2)
    yield roots
    for root in roots.values():
        memory._named.pop(root.url.removeprefix("memory://"), None)


@pytest.fixture
def make_root(spoiled: dict[str, Root]) -> Callable[[str], Root]:
    """One more root: `make_root("memory")`, or below a directory: `make_root(path)`."""

    def make(place: str | Path = "memory") -> Root:
        url = f"memory://{uuid4().hex}" if place == "memory" else str(place)
        spoiled[url] = Root(url)
        return spoiled[url]

    return make


@pytest.fixture
def root(make_root: Callable[[], Root]) -> Root:
    """A root in memory, of which most tests need one."""
    return make_root()


@pytest.fixture
def faults(root: Root) -> Faults:
    return root.faults


@pytest.fixture
def open_shipped(open_log: Callable[..., Log], root: Root, spoiled: dict[str, Root]) -> Iterator[Callable[..., Log]]:
    """Open logs that ship to `root`, or to another one (`to=`); whatever hangs at the end goes on."""
    used: set[int] = set()
    met: list[Faults] = []

    def open_one(name: str = "log", *, to: Root | None = None, move: bool = False, **options: object) -> Log:
        target = root if to is None else to
        if id(target.faults) not in used:
            used.add(id(target.faults))
            met.append(target.faults)
        sections: dict[str, object] = {
            section: options.pop(section, {}) for section in ("journal", "segments", "retention", "shipping")
        }
        sections["shipping"] = {**QUICK, **sections["shipping"]}  # type: ignore[dict-item]
        sections["segments"] = {"seal_on_close": False, **sections["segments"]}  # type: ignore[dict-item]
        sections["store"] = {"url": target.url, "move": move}
        return open_log(name, settings=Settings.from_mapping(sections), **options)

    yield open_one
    for faults in met:
        faults.heal()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """Messages that were logged with an action."""
    caplog.set_level("INFO", logger="holdfast")

    def found(action: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if getattr(record, "action", "") == action]

    return found


def mark(log: Log, topic: str = "orders", partition: int = 0) -> holdfast.Marks:
    """The marks of one partition."""
    return log.marks(topic)[partition]


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Log], None]:
    """Have the janitor do what is due when the test asks, and not before."""
    made: list[Janitor] = []

    class Patient(Janitor):
        async def run(self) -> None:
            made.append(self)
            await asyncio.Event().wait()

    monkeypatch.setattr(session, "Janitor", Patient)

    def sweep_now(log: Log) -> None:
        shipper = log._store.shipper
        assert shipper is not None
        assert shipper._loop is not None
        asyncio.run_coroutine_threadsafe(made[-1].sweep(), shipper._loop).result(20)

    return sweep_now


@pytest.fixture
def open_quiet(open_shipped: Callable[..., Log]) -> Callable[..., Log]:
    """Opens logs in which retention here is applied when the test asks, and not before."""

    def open_one(name: str = "log", **options: Any) -> Log:
        log = open_shipped(name, **options)
        log._maintenance._roller.chores.clear()  # type: ignore[union-attr]
        return log

    return open_one
