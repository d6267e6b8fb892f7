"""The shipper: one thread with one event loop that brings an open log to its store.

    introduce (is this root ours, and what it was?) → wait for something to ship → claim the epoch → see what is there
    already, and send again what is not any more → commit batches and segments, side by side, until it stops → drain
    → write the marks down

A log opens, appends and closes while its store is away: nothing here is in the way of the journal, which is pulled from
and never made to wait. What ends shipping for good is logged once, as critical, and stays visible
(`stats().shipping.ended`): another process has taken over (appends are refused from then on, also when the log is
opened again), or the root holds what this log cannot have written. A store that has forgotten this log is not the end:
shipping waits, with an alarm, until it is back or is rebuilt from what is here (`forgotten`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from holdfast import process_lifetime
from holdfast.caller import in_coroutine
from holdfast.clock import Clock
from holdfast.errors import Closed, HoldfastError, Invalid, Unavailable
from holdfast.journal.journal import Journal
from holdfast.journal.state.partition import Partition
from holdfast.root.root_store import RootStore
from holdfast.segments.manifest.local_manifest import Manifest
from holdfast.shipping import cost
from holdfast.shipping.alarm import AlarmState
from holdfast.shipping.escalation import Escalation
from holdfast.shipping.events import EventSubscribers, Subscription
from holdfast.shipping.lanes import backoff
from holdfast.shipping.lanes.frontier_lane import until_said
from holdfast.shipping.lanes.tail_lane import TailLane
from holdfast.shipping.lanes.uploading import Requests
from holdfast.shipping.ownership.earlier_epochs import RolledBack
from holdfast.shipping.ownership.fence import Fence
from holdfast.shipping.ownership.taken_topics import TopicTaken, is_sinks, taken
from holdfast.shipping.refill.rebuild_order import RebuildOrder, RebuildOrdered
from holdfast.shipping.refill.store_loss import StoreForgot, StoreRebuildReport
from holdfast.shipping.remote_store import CountedRemote, Remote
from holdfast.shipping.session import ShipperCalls, ShippingSession
from holdfast.shipping.shipping_context import ShippingContext
from holdfast.shipping.shipping_marks import fenced_by, say, shipment_of, shipping_of
from holdfast.shipping.shipping_settings import ShippingSettings
from holdfast.shipping.shipping_stats import ShippingCounters, ShippingStats, Unshipped
from holdfast.signals import Flag
from holdfast.store.pool_state import PoolState

_FORGOTTEN = "the store itself"
"""What is stuck, for the alarm, while the store has forgotten this log."""
_LOOK_AGAIN_S = 1.0
"""How soon a store that has forgotten is looked at again; then less and less often."""

logger = logging.getLogger("holdfast.shipping")


class Shipper:
    """Ships one open log."""

    def __init__(
        self,
        journal: Journal,
        manifest: Manifest,
        store: RootStore,
        remote: Callable[[], Remote],
        settings: ShippingSettings,
        clock: Clock,
        abort: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._manifest = manifest
        self._store = store
        self._make_remote = remote
        self._settings = settings
        self._clock = clock
        self.counters = ShippingCounters()
        self.subscribers = EventSubscribers(settings.events_max)
        self._escalation = Escalation(
            settings.escalation, lambda reason: journal.hold("shipping", reason), abort, self._note_alarm
        )
        self._remote: CountedRemote | None = None
        self._session: ShippingSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._calls = ShipperCalls()
        self._contacted = Flag()
        self._order: RebuildOrder | None = None
        self._forgotten = 0
        """How often in a row the store turned out to have forgotten this log."""
        self._shipping_state = journal.shipping_state
        self._shipping_state.ships = True
        self._shipping_state.timeout = settings.shipped_timeout_ms / 1000
        self._shipping_state.why = self._why
        self._is_closed = False
        self._logged_records = 0
        """How many records are not on the store, by what was reported at the end …"""
        self._ended_by: HoldfastError | None = None
        """… and what had ended shipping by then."""
        self._thread = Thread(target=self._work, name="holdfast-shipper", daemon=True)

    def start(self, wait_seconds: float) -> None:
        """Begin; waits a moment for the store's first word, so that a root which is not ours is refused at once.

        A log that was taken over opens, for reading; one that already knows it does not even ask.
        """
        fenced = fenced_by(self._journal)
        if fenced is not None:
            self._journal.hold("fenced", fenced)
            self._shipping_state.finish(fenced)
            self.subscribers.end(fenced)
            return
        self._thread.start()
        self.first_word(wait_seconds)

    def first_word(self, wait_seconds: float) -> None:
        """Wait a moment for the store's first word; raises Invalid where the root is not ours."""
        self._contacted.wait(wait_seconds)
        if isinstance(self._shipping_state.end, Invalid):
            raise self._shipping_state.end.again()

    # -- for everybody ------------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Events from now on."""
        return self.subscribers.subscribe()

    def ship(self, timeout: float) -> None:
        """Wait until all that is sealed now is settled, and the store's frontier says so."""
        self._journal.refuse_second()
        wanted = {p: p.sealed.sealed_offset for p in list(self._journal.partitions.values())}
        deadline = self._clock.monotonic() + timeout

        def is_settled() -> bool:
            return all(partition.settled >= end or partition.refusal for partition, end in wanted.items())

        while not is_settled():
            if self._shipping_state.refusal is not None:
                raise self._shipping_state.refusal.again()
            left = deadline - self._clock.monotonic()
            if left <= 0:
                cause, remedy = self._why()
                raise Unavailable(
                    f"not all that is sealed is on the store within {timeout:g} s{': ' * bool(cause)}{cause}"
                    f" store={self._store.url}",
                    hint=f"{remedy or 'log.stats().shipping says what delays it'}; shipping continues by itself",
                )
            self._shipping_state.signal.sleep(lambda: is_settled() or self._shipping_state.refusal is not None, left)
        until_said(self._shipping_state, wanted, self._hurry_frontier, deadline - self._clock.monotonic())
        self._refuse_taken(wanted)

    def _hurry_frontier(self) -> None:
        session, loop = self._session, self._loop
        if session is not None and session.frontier is not None and loop is not None:
            self._call(loop, session.frontier.hurry)

    def _refuse_taken(self, wanted: Mapping[Partition, int]) -> None:
        """Raise Invalid where records are left that never will be on the store; all others are there."""
        for partition, end in wanted.items():
            if partition.refusal is not None and partition.settled < end:
                raise partition.refusal.again()

    def require_free(self, topic: str, seconds: float) -> None:
        """Raise Invalid where a sink writes the topic of this name on the store; a store that does not answer within a
        moment is not waited for: then the shipper finds out.
        """
        loop, answers = self._loop, SimpleQueue[bool]()
        if loop is None or not self._shipping_state.is_known or self._escalation.is_stuck or in_coroutine():
            return

        def look() -> None:
            try:
                answers.put(is_sinks(self._store, self._journal.log_id.hex(), topic))
            except HoldfastError:
                answers.put(False)

        def begin() -> None:
            try:
                loop.run_in_executor(None, look)
            except RuntimeError:  # shipping has ended meanwhile
                answers.put(False)

        self._call(loop, begin)
        try:
            is_taken = answers.get(timeout=seconds)
        except Empty:
            return
        if is_taken:
            raise taken(topic, self._store.url)

    def claim(self, timeout: float) -> int:
        """Claim the store now, also if there is nothing to ship; the number, or 0 when that took too long."""
        self._calls.is_claim_wanted = True
        if self._loop is not None:
            self._call(self._loop, self._journal.topic_changes.notify)
        self._shipping_state.signal.sleep(
            lambda: self._epoch() > 0 or self._shipping_state.refusal is not None, timeout
        )
        return 0 if self._shipping_state.refusal is not None else self._epoch()

    @property
    def _fence(self) -> Fence | None:
        return None if self._session is None else self._session.fence

    @property
    def _lane(self) -> TailLane | None:
        return None if self._session is None else self._session.lane

    def _epoch(self) -> int:
        return 0 if self._fence is None else self._fence.epoch

    def rebuild(self, *, accept_loss: bool, timeout: float) -> StoreRebuildReport:
        """Bring back what the store has lost; returns when it is known what that is, and shipping has begun."""
        if self._shipping_state.end is not None:
            raise self._shipping_state.end.again()
        order = RebuildOrder(accept_loss=accept_loss)
        assert self._loop is not None
        self._call(self._loop, lambda: self._give(order))
        if not order.done.wait(timeout):
            raise Unavailable(
                f"the store did not answer within {timeout:g} s store={self._store.url}", hint="it continues by itself"
            )
        return order.result()

    def _give(self, order: RebuildOrder) -> None:
        if self._order is not None:
            self._order.finish(Unavailable("another rebuild was ordered meanwhile"))
        self._order = order
        self._calls.ordered.set()

    def unshipped(self) -> tuple[Unshipped, ...]:
        """What is durable here and not known to be on the store; of a log that was taken over, what is stranded."""
        spans = []
        for partition in self._journal.partitions.values():
            shipped, durable = partition.shipped, partition.durable
            if shipped < durable:
                spans.append(Unshipped(partition.topic, partition.number, shipped, durable - shipped))
        return tuple(sorted(spans, key=lambda span: (span.topic, span.partition)))

    def stats(self) -> ShippingStats:
        """Shipping at this moment."""
        counters = self.counters
        partitions = list(self._journal.partitions.values())
        lag_bytes = counters.backlog_bytes + self._journal.commits.bytes - counters.acknowledged_bytes
        now = self._loop.time() if self._loop is not None else 0.0
        left, is_fenced = sum(p.durable - p.shipped for p in partitions), shipping_of(self._journal).fenced > 0
        requests = counters.cost.requests if self._remote is None else self._remote.requests()
        return ShippingStats(
            store=self._store.url,
            epoch=self._epoch(),
            in_flight=counters.in_flight,
            batches_total=counters.batches,
            segments_total=counters.segments,
            objects_total=counters.objects,
            bytes_total=counters.bytes,
            put_seconds=counters.durations.histogram(),
            resolved_total=counters.resolved,
            retries=counters.retries,
            lag_records=0 if is_fenced else left,
            lag_bytes=max(0, lag_bytes) if left and not is_fenced else 0,
            lag_seconds=0.0 if self._lane is None or is_fenced else self._lane.lag_seconds(now),
            stranded_records=left if is_fenced else 0,
            unsettled_segments=self._unsettled(),
            pool=PoolState() if self._remote is None else self._remote.pool(),
            requests={kind: count for kind, count in requests.items() if count},
            dollars=cost.dollars(requests),
            events_subscribers=len(self.subscribers),
            alarm=self._escalation.state,
            last_error=counters.last_error,
            ended=None if self._shipping_state.end is None else self._shipping_state.end.message,
            forgotten=None if self._shipping_state.trouble is None else self._shipping_state.trouble.message,
            fenced=is_fenced,
            resent_total=counters.resent,
        )

    def close(self, timeout: float) -> None:
        """Ship what is there within the time, write the marks down, end the thread, say what is left."""
        if self._is_closed:
            self._tell_left(0.0)  # what came since, while the process ends
            return
        loop, started = self._loop, self._clock.monotonic()
        if loop is not None and self._thread.is_alive():
            self._call(loop, self._calls.stop.set)
            # Where the store is known to be away, waiting for it would be in vain.
            self._thread.join(min(timeout, 0.5) if self._escalation.is_stuck else timeout)
            if self._thread.is_alive() and self._task is not None:
                self._call(loop, self._task.cancel)
            self._thread.join(max(2.0, started + timeout - self._clock.monotonic()))
        self._is_closed = True
        self._logged_records, self._ended_by = -1, self._shipping_state.end
        self._tell_left(self._clock.monotonic() - started)
        self._shipping_state.finish(Closed("the log is closed"))
        self.subscribers.end(None)
        self._store.close()

    def _tell_left(self, waited: float) -> None:
        """Say what is here only, since when, why, and what to do."""
        records, segments = sum(span.records for span in self.unshipped()), self._unsettled()
        if (not records and not segments) or records <= self._logged_records:
            return
        self._logged_records = records
        end, (cause, remedy) = self._ended_by, self._why()
        left = f"{_counted(records, 'record')} and {_counted(segments, 'segment')} that are not on the store"
        if end is not None:  # and nothing of it is shipped after the next open, either
            why, then, remedy = end.message, "they are durable here and nowhere else", end.hint
        else:
            why = cause or ("the process ends" if process_lifetime.is_ending() else "the time to drain was over")
            why, then = f"{self._since(waited)}: {why}", "they are durable here and shipped after the next open"
        logger.warning(
            "closed with %s, %s; %s (%s) path=%s store=%s",
            left,
            why,
            then,
            remedy or "holdfast ship DIR, or a longer shipping.drain_timeout_ms",
            self._journal.path.parent,
            self._store.url,
            extra={"action": "close_unshipped", "records": records, "segments": segments},
        )

    def _since(self, waited: float) -> str:
        since, loop = self.counters.failing_since, self._loop
        if self.counters.failure is None or loop is None:
            return f"after {waited:.0f} s of waiting"
        return f"which takes nothing for {max(0.0, loop.time() - since):.0f} s"

    def _why(self) -> tuple[str, str]:
        """What holds shipping up, and the remedy, as far as is known."""
        failure = self._shipping_state.trouble or self.counters.failure
        if failure is not None:
            return failure.message, failure.hint
        if not self._shipping_state.is_known:
            return "the store has not answered yet", "check store.url, store.endpoint and the network"
        return "", ""

    def _unsettled(self) -> int:
        partitions = self._journal.partitions.values()
        return sum(p.sealed.segments - shipment_of(p).settled_segments for p in partitions)

    def _call(self, loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
        try:
            loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop has ended by itself
            pass

    def forget(self) -> None:
        """In a forked child: the thread and its connections are the parent's."""
        self._loop = self._task = None
        forked = Closed("this log was opened before a fork", reason="forked")
        self._shipping_state.finish(forked)
        # New ones: the lock of the old may have been held by a thread that is not here.
        self.subscribers = EventSubscribers(self._settings.events_max)
        self.subscribers.end(forked)

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        loop.set_default_executor(process_lifetime.Threads(thread_name_prefix="holdfast-shipper"))
        try:
            self._task = loop.create_task(self._main())
            loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass  # the time to drain is over
        except BaseException as error:
            self._end(_first(error))
        finally:
            self._contacted.set()
            _finish(loop, self._leave())

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, HoldfastError):
            reason = f"{type(error).__name__}: {error}"
            defect = Unavailable(f"shipping stopped: {reason}", hint="this is a defect in holdfast; reopen the log")
            defect.__cause__ = error
            logger.critical("shipping stopped: %s", reason, exc_info=error, extra={"action": "shipping_ended"})
            error = defect
        else:
            logger.critical("shipping ended: %s (%s)", error.message, error.hint, extra={"action": "shipping_ended"})
        if isinstance(error, Closed | RolledBack):
            self._journal.hold("fenced", error)
        is_fenced = isinstance(error, Closed) and error.reason == "fenced"
        say(self._journal, ended=error.message, alarm="", fenced=self._epoch() + 1 if is_fenced else 0)
        self.counters.last_error = error.message
        self._shipping_state.finish(error)
        self.subscribers.end(error)
        if self._order is not None:
            self._order.finish(error)

    def _note_alarm(self, state: AlarmState | None) -> None:
        """Have it written down for `status`, when it is raised for a new reason or cleared."""
        last = self.counters.last_error or ""
        say(self._journal, alarm="" if state is None else state.message, last_error="" if state is None else last)

    async def _main(self) -> None:
        remote = self._remote = CountedRemote(self._make_remote(), self.counters.cost)
        requests = Requests(self._settings, self._escalation, self.counters, self._clock)
        await remote.start()
        while True:
            try:
                await self._ship(remote, requests)
                return
            except BaseException as error:
                lost = _first(error)
                if isinstance(lost, TopicTaken) and self._session is not None:
                    self._session.taken.refuse(lost.topic)
                    continue
                if isinstance(lost, RebuildOrdered):
                    continue
                if not isinstance(lost, StoreForgot):
                    raise
            if not await self._until_remembered(lost):
                return

    async def _ship(self, remote: Remote, requests: Requests) -> None:
        """From the first look at the store to the end, or until the store turns out to have forgotten this log."""
        order, self._order = self._order, None
        self._calls.ordered.clear()
        context = ShippingContext(
            self._journal, self._manifest, self._store, self._settings, self._clock, self.counters, self.subscribers
        )
        session = self._session = ShippingSession(context, remote, requests, self._calls)
        try:
            if order is not None:
                await session.rebuild(order, self._remember)
            else:
                await session.run(self._remember, is_doubtful=self._forgotten > 0)
        except BaseException as error:
            if order is not None and isinstance(first := _first(error), HoldfastError):
                order.finish(first)
            raise
        finally:
            await session.fence.close()

    def _remember(self) -> None:
        """The store is what it was."""
        self._forgotten = 0
        self._shipping_state.is_known = True
        self._shipping_state.trouble_by(None)
        self._escalation.recovered(asyncio.get_running_loop().time(), _FORGOTTEN)
        self._contacted.set()

    async def _until_remembered(self, lost: StoreForgot) -> bool:
        """Wait a while, or for an order to rebuild the store; False when shipping is to stop."""
        loop = asyncio.get_running_loop()
        self._forgotten += 1
        self.counters.failed("forgotten", lost, loop.time())
        self._escalation.exhausted(loop.time(), _FORGOTTEN, "forgotten", lost.message)
        self._shipping_state.trouble_by(lost)
        self._contacted.set()
        if self._settings.rebuild_store and self._order is None:
            self._order = RebuildOrder(accept_loss=False)
        if not (self._forgotten == 1 and self._order is not None):
            cap = max(_LOOK_AGAIN_S, self._settings.retry_delay_max_ms / 1000)
            pause = backoff.delay(self._forgotten - 1, _LOOK_AGAIN_S, cap, 1.0, 0.0)
            try:
                await asyncio.wait_for(self._calls.any(), pause)
            except TimeoutError:
                pass
        return not self._calls.stop.is_set()

    async def _leave(self) -> None:
        """Close what `_main` opened; a task of its own, since `_main` may be cancelled at any moment, also twice."""
        if self._fence is not None:
            await self._fence.close()
        if self._remote is not None:
            await self._remote.close()


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _first(error: BaseException) -> BaseException:
    """What went wrong first, out of a group."""
    while isinstance(error, BaseExceptionGroup):
        holdfast = error.subgroup(HoldfastError)
        error = (holdfast or error).exceptions[0]
    return error


def _finish(loop: asyncio.AbstractEventLoop, leave: Coroutine[Any, Any, None]) -> None:
    try:
        loop.run_until_complete(leave)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
