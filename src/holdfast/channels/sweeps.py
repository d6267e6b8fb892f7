"""Sweeps over all channels of one participant: buffers, repairs and syncs, on request or at their intervals.

A sweep takes the same step in every channel. All commits go together, and then each is waited for. Channels with a
participant far behind are swept for repairs more often than the others.
"""

from __future__ import annotations

import asyncio
from _thread import RLock
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from holdfast.caller import once
from holdfast.channels.channel import Channel, Flight
from holdfast.channels.channel_settings import ChannelSettings
from holdfast.channels.keeping.waiting import await_kept, kept_async
from holdfast.channels.open_channels import OpenChannels
from holdfast.channels.periodic import HURRY_INTERVAL_MS, PeriodicThread, Task, TaskSchedule, run_until
from holdfast.channels.protocol import steps
from holdfast.channels.protocol.steps import Input, StepEffects
from holdfast.clock import Clock
from holdfast.errors import Closed

Sync = Callable[[], None]
Coro = Callable[[], Coroutine[Any, Any, None]]
NewInput = Callable[[], Input]
"""Makes what a sweep gives to each channel."""


class Sweeps:
    """The sweeps of one participant, and what runs them at intervals."""

    def __init__(
        self, channels: OpenChannels, settings: ChannelSettings, clock: Clock, *, blocks: bool, new_sync: NewInput
    ) -> None:
        """`blocks`: keeping what a sweep changes would block an event loop."""
        self._channels = channels
        self._settings, self._clock = settings, clock
        self._blocks = blocks
        self._new_sync = new_sync
        self._lock = RLock()
        self._thread: PeriodicThread | None = None

    def run(self, given: NewInput, *, hurried: bool = False) -> None:
        """One sweep; returns when what it changed is kept. `hurried`: only where a participant is far behind."""
        for channel, effects, flight in self._taken(given, hurried):
            await_kept(channel, flight, self._settings.ack_timeout_ms / 1000)
            if effects.wanted:
                channel.answer(channel.find(effects.wanted))

    async def run_async(self, given: NewInput, *, hurried: bool = False) -> None:
        """`run` for coroutines."""
        if self._blocks:
            await asyncio.to_thread(self.run, given, hurried=hurried)
            return
        for channel, effects, flight in self._taken(given, hurried):
            await kept_async(channel, flight)
            if effects.wanted:
                channel.answer(await asyncio.to_thread(channel.find, effects.wanted))

    def _taken(self, given: NewInput, hurried: bool) -> list[tuple[Channel, StepEffects, Flight]]:
        taken = []
        for channel in self._channels.all():
            if hurried and not channel.state.hurried:
                continue
            try:
                taken.append((channel, *channel.take(given())))
                if taken[-1][1].sync_due:
                    taken.append((channel, *channel.take(self._new_sync())))
            except Closed:
                pass  # it was removed meanwhile
        return taken

    # -- at their intervals

    def start(self, buffers: Sync, repairs: Sync, sync: Sync) -> None:
        """Sweep from a thread of their own; starting again changes nothing."""
        with once(self._lock):
            if self._thread is None:
                hurry = partial(self.run, steps.SweepRepairs, hurried=True)
                self._thread = PeriodicThread(self._schedule(buffers, repairs, sync, hurry))

    async def run_periodically(self, is_over: Callable[[], bool], buffers: Coro, repairs: Coro, sync: Coro) -> None:
        """Sweep on this event loop, until it is over, or cancelled."""
        hurry = partial(self.run_async, steps.SweepRepairs, hurried=True)
        await run_until(is_over, self._schedule(buffers, repairs, sync, hurry))

    def stop(self) -> None:
        """Stop sweeping; returns when the last sweep has ended."""
        with once(self._lock):
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock, self._thread = RLock(), None

    def _schedule(self, buffers: Task, repairs: Task, sync: Task, hurry: Task) -> TaskSchedule[Task]:
        settings = self._settings
        tasks: list[tuple[int, Task]] = [
            (settings.buffer_sweep_interval_ms, buffers),
            (settings.repair_sweep_interval_ms, repairs),
            (settings.sync_interval_ms, sync),
            (HURRY_INTERVAL_MS, hurry),
        ]
        return TaskSchedule(tasks, self._clock)
