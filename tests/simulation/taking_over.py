"""A restore on another machine, in virtual time: what `holdfast.restore` does to a store, request by request.

The real one blocks a thread; here every request can be late, lost or overtaken by those of others. Steps and their
order are those of `recovery.restore` and `shipping.ownership.takeover`: claim, look, adopt, settle what batches name,
start in every partition, make sure that nobody has claimed since. What counts is decided by the same code (`inherit`,
`tail_walk`, `continued`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from holdfast.errors import Closed, NotFound
from holdfast.root import tail_walk
from holdfast.root.objects import commit_batch, documents
from holdfast.root.objects.commit_batch import CommitBatch
from holdfast.root.objects.documents import AdoptedDocument, EpochDocument, StartDocument
from holdfast.root.objects.manifest_chain import prove
from holdfast.root.store_manifest import StoreManifest
from holdfast.root.tail_listing import TailListing, inherit
from holdfast.shipping.escalation import Escalation
from holdfast.shipping.lanes.uploading import Requests
from holdfast.shipping.ownership.fence import Claimant, Fence, newest_epoch
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.shipping.shipping_stats import ShippingCounters
from holdfast.store import layout
from holdfast.store.port import AlreadyExists, Body
from tests.simulation.model_log import LOG_ID, ModelLog, Where
from tests.simulation.model_store import FaultPolicy, ModelFace, ModelRemote
from tests.simulation.world import ACTING, World, no_abort, where_of, with_named

Result = TypeVar("Result")


class _Found(NamedTuple):
    """What a restore has read."""

    inherited: TailListing
    manifests: list[StoreManifest]
    batches: list[CommitBatch]
    settled: dict[Where, int]


async def take_over(
    world: World,
    old: ModelLog,
    name: str,
    policy: FaultPolicy,
    settings: ShippingSettings,
    remote: type[ModelRemote] = ModelRemote,
) -> ModelLog:
    """Claim the store and bring the log back, as `holdfast.restore` does; the old owner knows nothing of it."""
    return await world.loop.create_task(_TakeOver(world, old, name, policy, settings, remote).run())


class _TakeOver:
    """One restore."""

    def __init__(
        self,
        world: World,
        old: ModelLog,
        name: str,
        policy: FaultPolicy,
        settings: ShippingSettings,
        remote: type[ModelRemote],
    ) -> None:
        self._world, self._old, self._name, self._policy = world, old, name, policy
        self._face = ModelFace(world.store, policy, name, world.loop)
        self._remote = remote(world.store, policy, name)
        escalation = Escalation("keep-trying", lambda reason: None, no_abort)
        self._requests = Requests(settings, escalation, ShippingCounters(), world.clock)

    async def run(self) -> ModelLog:
        ACTING.set(self._policy)
        owner = self._world.clock.random_bytes(16)
        fence = Fence(Claimant(LOG_ID, 1, owner), self._face, self._remote, self._requests, self._world.clock)
        claim = await fence.claim("restore")
        while True:
            try:
                found = await self._read()
                break
            except NotFound:
                pass  # the old owner's last sweep removed it: it is settled; a restore is run again
        inherited = found.inherited
        walked = tail_walk.walk(LOG_ID, found.batches, found.settled, inherited.floor, inherited.frontier)
        await self._adopt(claim, inherited, walked.last_seq)
        if any(batch.segments for batch in found.batches):
            if await self._ask(lambda: newest_epoch(self._face)) != claim.epoch:
                raise Closed("another restore has taken over", reason="fenced")
            found = found._replace(manifests=[await self._settle(m, found.batches) for m in found.manifests])
        started = [await self._start(manifest, claim, walked.last_seq) for manifest in found.manifests]
        settled = {(manifest.topic, manifest.partition): manifest.settled or 0 for manifest in started}
        found = found._replace(manifests=started, settled=settled)
        if await self._ask(lambda: newest_epoch(self._face)) != claim.epoch:
            raise Closed("another restore has taken over", reason="fenced")
        return self._bring_back(claim, found, walked.last_seq)

    async def _adopt(self, claim: EpochDocument, inherited: TailListing, seq: int) -> None:
        """Say what counts; also in the name of takeovers that have said nothing yet."""
        epoch = claim.epoch - 1
        while epoch and epoch not in dict(inherited.adopted):
            key = layout.epoch_key(epoch)
            if documents.decode(await self._get(key), key, EpochDocument).purpose != "restore":
                break
            await self._say_adopted(epoch, seq)
            epoch -= 1
        await self._say_adopted(claim.epoch, seq)

    async def _say_adopted(self, epoch: int, seq: int) -> None:
        adopted = AdoptedDocument(log=LOG_ID.hex(), epoch=epoch, seq=seq)
        await self._create(layout.adopted_key(epoch, seq), documents.encode(adopted))

    async def _read(self) -> _Found:
        inherited = await self._ask(lambda: inherit(self._face.list(layout.TAIL)))
        wheres = [where_of(partition) for partition in self._old.all_partitions]
        manifests = [await self._manifest(where) for where in wheres]
        names = [(key, name.last_seq) for key, name in inherited.batches if name.last_seq > inherited.floor]
        batches = [tail_walk.cut(commit_batch.decode(await self._get(key), key), last) for key, last in names]
        manifests = [with_named(manifest, batches) for manifest in manifests]
        settled = {where: manifest.settled or 0 for where, manifest in zip(wheres, manifests, strict=True)}
        return _Found(inherited, manifests, batches, settled)

    async def _manifest(self, where: Where) -> StoreManifest:
        listed = await self._ask(lambda: list(self._face.list(layout.manifest_folder(*where))))
        found = [documents.decode_manifest(await self._get(info.key), info.key) for info in listed]
        prove(found, LOG_ID.hex(), *where)
        return StoreManifest(*where, tuple(found), None)

    async def _settle(self, manifest: StoreManifest, batches: list[CommitBatch]) -> StoreManifest:
        for segment in manifest.segments:
            key = layout.manifest_key(segment.topic, segment.partition, segment.slot)
            if not await self._create(key, documents.encode(segment)):
                found = with_named(await self._manifest((manifest.topic, manifest.partition)), batches)
                assert found.documents != manifest.documents, f"another segment is there {key=}"
                return await self._settle(found, batches)
        return manifest

    async def _start(self, manifest: StoreManifest, claim: EpochDocument, seq: int) -> StoreManifest:
        starts = [document for document in manifest.documents if isinstance(document, StartDocument)]
        if starts and starts[-1].epoch > claim.epoch:
            raise Closed("another restore has taken over", reason="fenced")
        document = StartDocument(
            log=LOG_ID.hex(),
            topic=manifest.topic,
            partition=manifest.partition,
            slot=len(manifest.documents),
            epoch=claim.epoch,
            nonce=claim.nonce,
            number=len(manifest.segments),
            first=manifest.settled or 0,
            adopted_seq=seq,
        )
        key = layout.manifest_key(manifest.topic, manifest.partition, document.slot)
        if await self._create(key, documents.encode(document)):
            return manifest._replace(documents=(*manifest.documents, document))
        # The old owner settled one more segment.
        return await self._start(await self._manifest((manifest.topic, manifest.partition)), claim, seq)

    def _bring_back(self, claim: EpochDocument, found: _Found, limit: int) -> ModelLog:
        walked = tail_walk.walk(LOG_ID, found.batches, found.settled, found.inherited.floor, limit)
        assert walked.last_seq == limit, f"adopted up to {limit}, brought back up to {walked.last_seq}"
        ids = {(manifest.topic, manifest.partition): i for i, manifest in enumerate(found.manifests, 1)}
        tail = list(tail_walk.entries(found.batches, found.settled, walked.last_seq, ids))
        log = ModelLog.brought_back(self._name, claim, found.manifests, tail, walked)
        world, old = self._world, self._old
        for entry in tail:
            assert old.entries[entry.seq].digest == entry.digest, f"brought back what was never written seq={entry.seq}"
        if claim.epoch > world.newest_claim:  # else a rival was faster, and this one finds out when it is opened
            world.newest_claim, world.newest = claim.epoch, log
            world.adopted[old.name] = {where_of(partition): partition.durable for partition in log.all_partitions}
            world.moved(old)
        return log

    async def _create(self, key: str, data: bytes) -> bool:
        """Create an object; False when another one stands there."""

        async def attempt() -> bool:
            try:
                await self._remote.create(key, Body.of(data))
            except AlreadyExists:
                return await self._get(key) == data
            return True

        return await self._requests.until_answered(f"create {key}", attempt)

    async def _get(self, key: str) -> bytes:
        return await self._ask(lambda: self._face.get(key))

    async def _ask(self, call: Callable[[], Result]) -> Result:
        def request() -> Awaitable[Result]:
            return self._world.loop.run_in_executor(None, call)

        return await self._requests.until_answered("restore", request)
