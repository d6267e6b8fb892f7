"""What goes to another process and what does not: pools send arguments, results and errors as pickles."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from holdfast import Log, OutcomeUnknown

pytestmark = pytest.mark.disk

Open = Callable[..., Log]


@pytest.mark.parametrize("share", [False, True])
def test_an_open_log_says_how_to_use_it_in_another_process(open_log: Open, *, share: bool) -> None:
    log = open_log(share=share)
    topic = log.topic("t")
    consumer = topic.consumer("c")
    ticket = topic.submit(b"one")
    for one in (log, topic, ticket, consumer, log.producer("p"), topic.read(), log.space("s")):
        with pytest.raises(TypeError, match=r"open the log there with holdfast.open\(path, share=True\)"):
            pickle.dumps(one)
    receipt = ticket.result()
    assert pickle.loads(pickle.dumps(receipt)) == receipt
    consumer.close()


def test_an_unknown_outcome_goes_to_another_process_without_its_ticket(open_log: Open) -> None:
    """A pool would show its caller the failure to send it instead."""
    ticket = open_log().topic("t").submit(b"one")
    error = OutcomeUnknown("no acknowledgement", idempotency_key=b"k", ticket=ticket)
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.idempotency_key, sent.ticket) == (str(error), b"k", None)
    assert copy.copy(error).ticket is error.again().ticket is ticket
