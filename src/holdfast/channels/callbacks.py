"""Where events are delivered: the application, and the transport that carries what is due.

A callback is foreign code: when it raises that is logged, and affects neither the operation nor later events.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.channels.channel_events import Event, MessageReady, PeriodicSync, RepairReady, ResendDue
from holdfast.channels.delivered import DeliverySubscribers

logger = logging.getLogger("holdfast.channels")

Callback = Callable[[Any], None]


class Callbacks:
    """Callbacks by the kind of event that they take."""

    def __init__(self) -> None:
        self._by_kind: dict[type, Callback] = {}
        self.broadcast: Callable[[bytes], None] | None = None
        self.subscribers = DeliverySubscribers()

    def replace(self, callbacks: Mapping[type, Callback | None]) -> None:
        """These, and no others."""
        self._by_kind = {kind: callback for kind, callback in callbacks.items() if callback is not None}

    def tell(self, event: Event) -> None:
        """Notify the callbacks."""
        broadcast = self.broadcast
        if broadcast is not None and isinstance(event, ResendDue | RepairReady | PeriodicSync):
            self._call(lambda due: broadcast(due.data), event)
        if isinstance(event, MessageReady):
            self.subscribers.tell(event)
        callback = self._by_kind.get(type(event))
        if callback is not None:
            self._call(callback, event)

    def _call(self, callback: Callback, event: Event) -> None:
        try:
            callback(event)
        except Exception as error:
            logger.error(
                "a callback failed event=%s channel=%s",
                type(event).__name__,
                event.channel_id,
                extra={"action": "channel_callback_failed", "channel": event.channel_id},
                exc_info=error,
            )
