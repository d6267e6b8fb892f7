"""The thread that brings groups to the server: the place that the writer has in a log of this process.

One group is on its way at a time; what is submitted meanwhile gathers in the next one. Each group is one request under
this client's session and a number of its own, and the server stores both in the commit that stores the records. So a
group whose answer was lost is simply sent again, as often as needed, also to a server that was killed and started
again: it is written once, and answered as it was the first time.

How long. A group is tried for as long as this client is open: callers have time-outs of their own, which end in
OutcomeUnknown, and their tickets still settle. Meanwhile the queue fills up to its limits, and newcomers get Full.

Failing. What the server refuses item by item is part of its answer. What it refuses as a whole (4xx) fails with what it
says. After an attempt whose fate is not known, such a refusal proves nothing about the attempts before it: that is
OutcomeUnknown. Nothing is ever reported as not written when it may have been.
With the next attempt goes which number the server has stored before (`Holdfast-Stored`): a log that does not know that
any more has forgotten this client, and would write what it wrote already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Thread

from holdfast.clock import SystemClock
from holdfast.errors import Closed, HoldfastError, OutcomeUnknown, Unavailable
from holdfast.journal.commit.forwarded_groups import fill_in, forwarded, is_about
from holdfast.journal.queue.group import Group, Run, Unit
from holdfast.journal.queue.offered_failure import OfferedFailure
from holdfast.journal.queue.queue import Queue
from holdfast.journal.sessions.outcomes import Outcomes, RunOutcome
from holdfast.journal.state.partition import Partition
from holdfast.owner.group_frames import PackedGroup
from holdfast.owner.wire import ANSWER, FROM_OWNER, HEADER, BadFrame, GroupAnswer, decoded, header
from holdfast.remote.http.error_message import error_of
from holdfast.remote.http.exchange import MSGPACK, Exchange, Pauses, Question, ServerAnswer, monotonic

_SESSION_BYTES = 16
_ATTEMPT_S = 30.0
"""How long one attempt may take; then the connection is given up, and the group is sent again."""

Items = list["Run | Unit"]
Stored = Callable[[list[tuple[Partition, int]]], None]

logger = logging.getLogger("holdfast.remote")


class GroupSender:
    """Takes groups of a queue and has them written; all of it is its thread's."""

    def __init__(self, queue: Queue, exchange: Exchange, partitions: Mapping[int, Partition], stored: Stored) -> None:
        """`stored` is called with the offsets up to which records are durable now."""
        self._queue = queue
        self._exchange = exchange
        self._partitions = partitions
        self._stored = stored
        self._session = SystemClock().random_bytes(_SESSION_BYTES).hex()
        self._sequence = 0
        self._stored_last = 0
        """The newest number that is known to be in the log."""
        self.offered_failure = OfferedFailure()
        self.groups = 0
        self._is_troubled = False
        self._thread = Thread(target=self._work, name="holdfast-sender", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, timeout: float) -> bool:
        """Wait until it has ended; False when that takes longer."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        group: Group | None = None
        try:
            while (group := self._queue.take()) is not None:
                self._bring(group)
                self._queue.complete(group)
        except BaseException as error:  # nobody is left waiting
            self._die(error, group)

    def _die(self, error: BaseException, group: Group | None) -> None:
        reason = error if isinstance(error, HoldfastError) else Closed(f"sending ended: {type(error).__name__}")
        if not isinstance(error, Closed):
            logger.critical("sending ended: %s", reason.message, extra={"action": "sender_ended"}, exc_info=error)
        self.offered_failure.note(reason)
        abandoned = self._queue.abandon(reason)
        if group is not None and not group.done:
            group.finish(_unknown("the client was closed before the server had answered"))
        for waiting in abandoned:
            waiting.finish(_not_sent())

    # -- one group ----------------------------------------------------------------------------------------

    def _bring(self, group: Group) -> None:
        items, taken = forwarded(group.items)
        if items:  # else it is a barrier
            self._sequence += 1
            self.groups += 1
            self._send(group, PackedGroup(self._sequence, items), taken)
            self._stored(_ends_of(taken))
        group.finish()

    def _send(self, group: Group, packed: PackedGroup, taken: Items) -> None:
        """Send these as one request until it is answered."""
        question = self._question(packed)
        pauses, in_doubt = Pauses(), False
        while True:
            attempt = self._exchange.attempt(question, monotonic() + _ATTEMPT_S)
            answer = attempt.answer
            if attempt.problem is not None:
                self._fail_all(group, taken, attempt.problem, in_doubt=in_doubt or attempt.was_sent)
                return
            if answer is not None and answer.status == 200:
                self._take(group, taken, answer)
                self._note_trouble("")
                return
            if answer is not None and 400 <= answer.status < 500 and answer.status not in (408, 429):
                error = error_of(answer.status, answer.body, str(self._exchange.address))
                self._fail_all(group, taken, error, in_doubt=in_doubt)
                return
            in_doubt = in_doubt or (attempt.was_sent and not _is_certain(answer))
            if in_doubt and self._stored_last:
                question = question._replace(headers={**question.headers, "Holdfast-Stored": str(self._stored_last)})
            self._note_trouble(attempt.why or f"status={answer.status if answer is not None else 0}")
            self._exchange.pause(pauses.next(answer))

    def _question(self, packed: PackedGroup) -> Question:
        headers = {"Content-Type": MSGPACK, "Accept": MSGPACK, "Holdfast-Session": self._session}
        body = b"".join(packed.buffers(packed.sequence))
        return Question("POST", ("v1", "groups"), body=body, headers=headers)

    def _take(self, group: Group, taken: Items, answer: ServerAnswer) -> None:
        """What the server says became of a group."""
        try:
            outcomes = self._outcomes(answer.body)
            _check(taken, outcomes, self._partitions)
        except BadFrame as error:
            logger.error("an answer of the server cannot be understood: %s", error, extra={"action": "bad_answer"})
            self._fail_all(group, taken, _unknown("the server's answer cannot be understood"), in_doubt=True)
            return
        if any(outcome.error is None for outcome in outcomes):
            self._stored_last = self._sequence
        fill_in(taken, outcomes, self._partitions, self.offered_failure, offered=bool(group.offered))

    def _outcomes(self, body: bytes) -> Outcomes:
        found = header(body, 0, FROM_OWNER) if len(body) >= HEADER.size else None
        if found is None or found.kind != ANSWER or found.size != len(body):
            raise BadFrame("this is no answer to a group")
        answer = decoded(ANSWER, body[HEADER.size :])
        if not isinstance(answer, GroupAnswer) or answer.sequence != self._sequence:
            raise BadFrame("this is the answer to another group")
        return answer.outcomes

    def _fail_all(self, group: Group, taken: Items, error: HoldfastError, *, in_doubt: bool) -> None:
        """Nothing of these was written; or, in doubt, nobody knows."""
        if in_doubt and not isinstance(error, OutcomeUnknown):
            cause, error = error, _unknown(f"it may have been written before this: {error.message}")
            error.__cause__ = cause
        for one in taken:
            one.fail(error)
        if group.offered:
            self.offered_failure.note(error)

    def _note_trouble(self, why: str) -> None:
        """Say once that the server does not answer, and once that it does again."""
        if why and not self._is_troubled:
            logger.warning(
                "the server at %s does not take records: %s; they wait here and are sent again",
                self._exchange.address,
                why,
                extra={"action": "server_away"},
            )
        elif not why and self._is_troubled:
            logger.info("the server at %s takes records again", self._exchange.address, extra={"action": "server_back"})
        self._is_troubled = bool(why)


def _is_certain(answer: ServerAnswer | None) -> bool:
    """Whether an answer says that nothing was written: there was no room, or no time to begin."""
    return answer is not None and answer.status in (408, 429)


def _unknown(message: str) -> OutcomeUnknown:
    return OutcomeUnknown(message, hint="read the topic back; give idempotency_key to make retries safe")


def _not_sent() -> Unavailable:
    return Unavailable("the client was closed before this was sent; nothing was written", hint="connect again")


def _check(taken: Items, outcomes: Outcomes, partitions: Mapping[int, Partition]) -> None:
    """Raise BadFrame unless an answer is about what was sent: it may name no record and no partition beside that."""
    if len(outcomes) != len(taken):
        raise BadFrame("an answer has other items than what was sent")
    for one, outcome in zip(taken, outcomes, strict=True):
        runs = [one] if isinstance(one, Run) else one.runs()
        if outcome.error is not None:
            continue
        if isinstance(one, Unit) and one.produced is not None and not is_about(runs, outcome.runs, partitions):
            continue  # it is about what was sent under the producer's number before
        if len(outcome.runs) < len(runs):
            raise BadFrame("an answer has other runs than what was sent")
        for run, found in zip(runs, outcome.runs, strict=False):  # positions come behind: they are the server's records
            _check_run(run, found, partitions)


def _check_run(run: Run, found: RunOutcome, partitions: Mapping[int, Partition]) -> None:
    places = {found.partition_id, *(repeat.partition_id for repeat in found.repeats)}
    known = [partitions.get(place) for place in places]
    indexes = {repeat.position for repeat in found.repeats} | {at for at, _ in found.refused}
    if found.count != len(run) or not all(0 <= index < len(run) for index in indexes):
        raise BadFrame("an answer names records that were not sent")
    if not all(one is not None and one.topic == run.partition.topic for one in known):
        raise BadFrame("an answer names partitions that are not there")
    if found.first < 0 and len(indexes) < len(run):
        raise BadFrame("an answer has no place for a record")


def _ends_of(taken: Items) -> list[tuple[Partition, int]]:
    """Behind which offsets the records are that were written just now."""
    runs = [run for item in taken for run in ([item] if isinstance(item, Run) else item.runs())]
    return [
        (run.partition, run.first + len(run) - len(run.repeats))
        for run in runs
        if run.first >= 0 and run.error is None and not run.repeated
    ]
