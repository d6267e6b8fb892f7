"""The link of a client: verbs called over HTTP, and events that come until nobody asks for them any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import msgspec
import pytest

import holdfast
from holdfast import Invalid, Log
from holdfast.clock import SystemClock
from holdfast.errors import OutcomeUnknown
from holdfast.journal.commit.owner_calls import Asking, Nothing
from holdfast.journal.queue.forwarded import ForwardedUnit
from holdfast.journal.sessions.outcomes import Outcome
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.consumers.member_messages import Assignment, JoinConsumer, LeaveConsumer, SyncMember, scope_of
from holdfast.log.consumers.stored_positions import StoredPosition, position_items
from holdfast.owner.link_port import MET
from holdfast.owner.mark_events import AskMarks, MarkEvents, MarksMoved, Shipments, WatchMarks
from holdfast.owner.peer import Peer
from holdfast.owner.segment_verbs import Retain, SealTopics
from holdfast.owner.verbs import TABLE
from holdfast.remote.http.exchange import MSGPACK, Question
from holdfast.remote.http.server_link import WITH_EVENTS, ServerLink
from holdfast.segments.retention.retention_report import RetentionReport
from tests.remote.cutting_proxy import CuttingProxy, Seen
from tests.remote.groups import outcomes, packed
from tests.remote.served import ServedLog

pytestmark = pytest.mark.crash

CLOCK = SystemClock()


@pytest.fixture
def link_of() -> Iterator[Callable[[Log], ServerLink]]:
    made = []

    def make(log: Log) -> ServerLink:
        made.append(ServerLink(log._journal._exchange, CLOCK))
        return made[-1]

    yield make
    for link in made:
        link.close()


def heard(link: ServerLink, name: str) -> SimpleQueue[bytes]:
    events: SimpleQueue[bytes] = SimpleQueue()
    link.on_event(name, events.put)
    return events


def test_what_has_events_is_what_the_table_says() -> None:
    assert {verb.name for verb in TABLE if verb.has_events and verb.right is not None} == WITH_EVENTS


def test_a_client_asks_for_what_a_member_asks_for(remote: Log, name: str) -> None:
    topic = remote.topic(name)
    topic.append(b"x")
    remote.seal(name)
    assert topic.marks()[0].sealed == 1
    assert remote.retain(dry_run=True).removed == ()
    assert remote.reconcile().findings == ()
    assert remote.last_reconcile is not None
    with pytest.raises(Invalid, match="no store"):
        remote.rebuild_store()


def test_errors_of_calls_are_those_of_the_log(remote: Log, link_of: Callable[[Log], ServerLink]) -> None:
    link = link_of(remote)
    with pytest.raises(holdfast.NotFound, match="no topic 'nowhere'"):
        link.call("seal", SealTopics(("nowhere",)), Nothing, 10.0)
    with pytest.raises(Invalid, match="does not decode"):
        link.call("retain", SealTopics(("nowhere",)), RetentionReport, 10.0)
    with pytest.raises(holdfast.NotFound, match="no such route"):
        link.call("own", Nothing(), Nothing, 10.0)


def test_an_answer_that_is_lost_leaves_the_outcome_unknown(
    served: ServedLog, proxy: CuttingProxy, link_of: Callable[[Log], ServerLink]
) -> None:
    with served.connect(proxy.url) as log:
        actions = iter(["lose_answer"])
        proxy.plan = lambda seen: next(actions, "pass") if seen.path.startswith("/v1/calls") else "pass"
        with pytest.raises(OutcomeUnknown):
            link_of(log).call("retain", Retain(dry_run=True), RetentionReport, 10.0)


def test_events_come_in_order_and_none_is_lost_with_an_answer(
    served: ServedLog, proxy: CuttingProxy, name: str, link_of: Callable[[Log], ServerLink]
) -> None:
    with served.connect(proxy.url) as log:
        topic, link = log.topic(name), link_of(log)
        marks, met = heard(link, "marks"), heard(link, MET)
        lost = iter(["pass", "lose_answer", "half_answer"] * 3)
        proxy.plan = lambda seen: next(lost, "pass") if is_events(seen) else "pass"
        link.call("watch", WatchMarks((name,), False), Nothing, 10.0)
        assert met.get(timeout=30) == b""
        for _ in range(6):
            topic.append(b"x")
            assert msgspec.msgpack.decode(marks.get(timeout=30), type=MarksMoved).topics == (name,)
        assert met.empty()


def is_events(seen: Seen) -> bool:
    return seen.path.startswith("/v1/events")


def test_a_client_that_asks_again_for_the_same_events_is_kept_once(tmp_path: Path) -> None:
    news: SimpleQueue[str] = SimpleQueue()
    with holdfast.open(tmp_path / "log") as log:
        topic, events = log.topic("quiet"), MarkEvents(log._journal)
        (part,) = log._journal.topics["quiet"]
        peer = Peer(bytes(16), 0, lambda name, body: news.put(name))
        for _ in range(5):
            events.watch(peer, WatchMarks(("quiet",), False))
            assert news.get(timeout=30) == "marks"
        assert (len(part.signal._calls), len(peer._ends)) == (1, 1)
        topic.append(b"x")
        assert news.get(timeout=30) == "marks"
        peer.end()
        events.stop()


def test_another_server_is_another_owner(mortal: ServedLog, name: str, link_of: Callable[[Log], ServerLink]) -> None:
    with mortal.connect() as log:
        topic, link = log.topic(name), link_of(log)
        marks, met = heard(link, "marks"), heard(link, MET)
        link.call("watch", WatchMarks((name,), False), Nothing, 10.0)
        met.get(timeout=30)
        mortal.restart()
        met.get(timeout=30)
        Asking(link, CLOCK).ask("watch", WatchMarks((name,), False), Nothing, 30.0)
        while not marks.empty():
            marks.get()
        topic.append(b"x")
        assert msgspec.msgpack.decode(marks.get(timeout=30), type=MarksMoved).topics == (name,)
        link.close()


def join(link: ServerLink, topic: str, token: bytes, consumer: str = "c") -> Assignment:
    return link.call("join_consumer", JoinConsumer(consumer, topic, token, None, 30.0, {}), Assignment, 30.0)


def sync(link: ServerLink, topic: str, token: bytes, *offered: int) -> Assignment:
    return link.call("sync_member", SyncMember("c", topic, token, offered), Assignment, 30.0)


def test_members_in_two_clients_share_partitions_and_one_that_leaves_gives_them_back(
    served: ServedLog, name: str, link_of: Callable[[Log], ServerLink]
) -> None:
    one_token, other_token = bytes([1]) * 16, bytes([2]) * 16
    with served.connect() as one_log, served.connect() as other_log:
        one_log.topic(name, partitions=2)
        one, other = link_of(one_log), link_of(other_log)
        news = heard(one, "members")
        assert join(one, name, one_token).held.keys() == {0, 1}
        assert join(one, name, one_token).held.keys() == {0, 1}  # asked twice is asked once
        assert join(other, name, other_token).is_waiting
        news.get(timeout=30)
        wanted = sync(one, name, one_token).wanted
        assert len(wanted) == 1
        assert sync(one, name, one_token, *wanted).held.keys() == {0, 1} - {*wanted}
        assert sync(other, name, other_token).held.keys() == {*wanted}
        other.close()
        while sync(one, name, one_token).held.keys() != {0, 1}:
            Event().wait(0.02)
        assert one.call("leave_consumer", LeaveConsumer("c", name, one_token), Nothing, 10.0) == Nothing()
        assert not sync(one, name, one_token).is_member


def test_marks_on_the_store_are_reported_without_a_word_of_where_it_is(
    remote: Log, name: str, link_of: Callable[[Log], ServerLink]
) -> None:
    remote.topic(name)
    assert link_of(remote).call("marks", AskMarks(name), Shipments, 10.0) == Shipments((), None)


class Sender:
    """Commits positions as a member does: by groups of a session of its own."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._session = CLOCK.random_bytes(16).hex()
        self._sequence = 0

    def commit(self, consumer: str, topic: str, token: bytes, turn: int, kept: StoredPosition) -> Outcome:
        change = ChangeSpace(b"consumers", tuple(position_items((consumer, topic), {0: kept})))
        return self.send(ForwardedUnit([change], 0, 0, scope_of(token, turn), reissue=True))

    def send(self, item: ForwardedUnit) -> Outcome:
        self._sequence += 1
        headers = {"Content-Type": MSGPACK, "Holdfast-Session": self._session}
        question = Question("POST", ("v1", "groups"), body=packed(item, sequence=self._sequence), headers=headers)
        (outcome,) = outcomes(self._log._journal._exchange.ask(question, 30.0).body)
        return outcome


def test_a_member_over_http_commits_as_a_member_over_the_socket(
    remote: Log, name: str, link_of: Callable[[Log], ServerLink]
) -> None:
    """Its own position, once, behind the one before; nothing of others, nothing that is not there, no other change."""
    topic, link, sender = remote.topic(name), link_of(remote), Sender(remote)
    topic.append_batch([b"1", b"2", b"3"])
    token, now = bytes([3]) * 16, CLOCK.now_us
    begun = join(link, name, token)
    held = begun.held[0]
    first = StoredPosition(2, now(), after=held.kept.at)
    assert sender.commit("c", name, token, begun.turn, first).error is None
    assert committed(remote, name) == 2
    third = StoredPosition(3, first.at + 1, after=first.at)
    for consumer, of, kept in (
        ("c", token, first),  # a second time
        ("c", token, StoredPosition(4, first.at + 1, after=first.at)),  # behind the end
        ("c", token, StoredPosition(3, first.at + 1, after=held.kept.at)),  # not behind the newest
        ("c", token, StoredPosition(3, now() + 2 * 86_400 * 10**6, after=first.at)),  # from the future
        ("c", token, StoredPosition(3, 2**63 - 1, after=first.at)),
        ("c", token, StoredPosition(3, first.at + 1, gone=True, after=first.at)),
        ("c", bytes([4]) * 16, third),  # a stranger, while a member has the partition
        ("d", token, third),  # a consumer that is not there
    ):
        refused = sender.commit(consumer, name, of, begun.turn, kept).error
        assert refused is not None, (consumer, kept)
        assert refused.kind == "Invalid"
    for change in (
        ChangeSpace(b"consumers", ((b"wait\0" + name.encode(), 1, b"{}"),)),
        ChangeSpace(b"consumers", (), (b"position\0c\0" + name.encode() + b"\x000",)),
        ChangeSpace(b"consumers", (), (), True),
        ChangeSpace(b"consumers", ((b"later", 1, b"{}"),)),
        ChangeSpace(b"consumers", ((b"\xff", 1, b"{}"),)),
    ):
        assert sender.send(ForwardedUnit([change], 0, 0, scope_of(token, begun.turn))).error is not None
    assert committed(remote, name) == 2
    assert sender.commit("c", name, token, begun.turn, third).error is None
    assert committed(remote, name) == 3
    topic.append(b"4")
    assert sync(link, name, token).held[0].kept == third


def committed(log: Log, topic: str) -> int:
    (status,) = log.consumers(topic)
    return status.partitions[0].committed
