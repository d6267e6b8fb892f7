"""An order to rebuild the store of an open log: given by any thread, carried out by the shipper's, answered once."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.shipping.refill.store_loss import StoreRebuildReport
from holdfast.signals import Flag


class RebuildOrdered(Exception):
    """Start over with the store: it is to be rebuilt."""


class RebuildOrder:
    """One order."""

    def __init__(self, *, accept_loss: bool) -> None:
        self.accept_loss = accept_loss
        """Whether records that are lost everywhere may be given up."""
        self.done = Flag()
        self._report: StoreRebuildReport | None = None
        self._error: HoldfastError | None = None

    def finish(self, outcome: StoreRebuildReport | HoldfastError) -> None:
        """Answer it; the first answer counts."""
        if self.done.is_set():
            return
        if isinstance(outcome, HoldfastError):
            self._error = outcome
        else:
            self._report = outcome
        self.done.set()

    def result(self) -> StoreRebuildReport:
        """The answer, once it is done; raises what prevented it."""
        if self._error is not None:
            raise self._error.again()
        assert self._report is not None
        return self._report
