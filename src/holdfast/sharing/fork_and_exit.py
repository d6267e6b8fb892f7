"""What a shared log does when its process forks, and when it ends without closing it.

A fork copies descriptors and memory, not threads. A child that inherited the lock would keep a dead parent's log owned;
one that inherited connections to the database would believe to have locks that it has not. So nothing of that is open
at the moment of a fork: a parent that owns the log hands it over, its readers let go of the database, and afterwards
the parent goes on, as a client or as the owner again. The child opens the log anew, with a session of its own, inside
the very objects that it inherited: the log, and the topics that were got from it. What the parent had not been answered
yet is the parent's, and is written once.

All of this happens in the thread that forks, and is bounded; a child that cannot join refuses use, as after any fork.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.journal.journal import Journal
from holdfast.log.local_parts import become
from holdfast.log.log import Log
from holdfast.sharing.membership import Membership
from holdfast.sharing.owner_link import SocketLink

_WAIT_S = 5.0

logger = logging.getLogger("holdfast.sharing")


class ForkAndExit:
    """The turns of one member's process."""

    def __init__(
        self, log: Log, membership: Membership, link: SocketLink, journal: Journal, open_again: Callable[[], Log]
    ) -> None:
        self._log = weakref.ref(log)
        self._membership = membership
        self._link = link
        self._journal = journal
        self._open_again = open_again

    def before_fork(self) -> None:
        """Hand over what we own, and let go of the database."""
        self._membership.pause(_WAIT_S)
        self._journal.suspend(_WAIT_S)

    def after_fork(self) -> None:
        """In the parent: go on."""
        self._journal.resume()
        self._membership.resume()

    def in_child(self) -> None:
        """In the child: become a member of our own, in the place of what was inherited."""
        self._link.forget()
        log = self._log()
        if log is None:
            return
        try:
            become(log, self._open_again())
        except HoldfastError as error:
            logger.error(
                "a forked process could not join the shared log: %s", error.message, extra={"action": "fork_failed"}
            )

    def settle(self, timeout: float) -> None:
        """The process ends: have what is queued here written, and all of it sealed and shipped if we are the owner."""
        try:
            self._journal.flush(timeout)
        except HoldfastError as error:
            logger.error("at the end of the process: %s", error.message, extra={"action": "exit_failed"})
        self._membership.settle(timeout)

    def close(self, timeout: float) -> None:
        """Nothing: the journal's link leaves, when all is written."""
