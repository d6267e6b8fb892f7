"""Reconciliation in the background: pass after pass, unit after unit, resting in between.

After each unit it rests `idle_ratio` times as long as the unit took, and `pass_interval_ms` between passes. An error
ends the pass, not the loop. Stopping interrupts a rest at once and a pass after the unit at hand.
"""

from __future__ import annotations

import logging
from threading import Thread

from holdfast.clock import Clock
from holdfast.errors import Closed
from holdfast.reconcile.reconcile_pass import Reconciler
from holdfast.segments.segment_settings import ReconcileSettings
from holdfast.signals import Flag

logger = logging.getLogger("holdfast.segments")


class ReconcileLoop:
    """The background job of one log."""

    def __init__(self, reconciler: Reconciler, settings: ReconcileSettings, clock: Clock) -> None:
        self._reconciler = reconciler
        self._settings = settings
        self._clock = clock
        self._stop = Flag()
        self._thread = Thread(target=self._work, name="holdfast-reconciler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the unit at hand."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._pass()
            except Closed:
                return
            except Exception:
                logger.exception("a reconciliation pass failed", extra={"action": "reconcile_failed"})
            self._stop.wait(self._settings.pass_interval_ms / 1000)

    def _pass(self) -> None:
        work = self._reconciler.begin(fix=self._settings.fix, deep=self._settings.deep)
        try:
            while not self._stop.is_set():
                began = self._clock.monotonic()
                if not work.step():
                    return
                self._stop.wait((self._clock.monotonic() - began) * self._settings.idle_ratio)
        finally:
            work.end()
