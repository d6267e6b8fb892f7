"""The protocol under any sequence of inputs, honest or not: what holds in every state."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.sampling import examples
from tests.unit.channels.network import Machine, entry, message

from holdfast.channels.channel_events import DependenciesLost, MessageReady
from holdfast.channels.protocol.steps import Receive, Send
from holdfast.errors import Full, Invalid

pytestmark = pytest.mark.unit

IDS = [f"m{number}" for number in range(8)]
ids = st.sampled_from(IDS)
T_MAX = 1_000


class AnySequence(RuleBasedStateMachine):
    """One participant, eight ids, and everything that can happen to them in any order."""

    dialect = "nim"

    @initialize(patience=st.sampled_from([0, 1_500]), participant=st.sampled_from(["alice", ""]))
    def begin(self, patience, participant):
        self.alice = Machine(
            participant,
            self.dialect,
            history_max=4,
            bloom_capacity=30,
            incoming_max=3,
            outgoing_max=4,
            repairs_max=3,
            repair_t_min_ms=100,
            repair_t_max_ms=T_MAX,
            resend_interval_ms=700,
            resend_attempts_max=2,
            lost_after_ms=patience,
            causal_history_max=3,
        )
        self.seen = set()
        """Ids that were delivered, sent, met, lost or heard as sync: messages that depend on them need not wait."""
        self.causes = {}
        """What each message names, by id and content."""
        self.synced = 0

    def take(self, given):
        effects = self.alice.take(given)
        self.look(effects)
        return effects

    def look(self, effects):
        """Each delivery comes after its causes, and is delivered in the order of history."""
        for event in effects.events:
            if isinstance(event, DependenciesLost):
                self.seen |= {lost.message_id for lost in event.lost}
        ready = {event.message_id: event for event in effects.events if isinstance(event, MessageReady)}
        assert [message_id for message_id in effects.appended if message_id in ready] == list(ready)
        for message_id in effects.appended:
            if message_id in ready:
                causes = self.causes[message_id, ready[message_id].content]
                assert causes - {message_id} <= self.seen, "delivered before a cause"
            self.seen.add(message_id)

    @rule(message_id=ids)
    def send(self, message_id):
        try:
            effects = self.take(Send(b"ours", message_id))
        except (Full, Invalid):
            return
        assert effects.data is not None
        assert effects.appended[0] == message_id

    @rule(
        message_id=ids,
        causes=st.lists(ids, max_size=4),
        requests=st.lists(ids, max_size=2),
        lamport=st.integers(0, 50),
        sender=st.sampled_from(["alice", "bob", ""]),
        content=st.sampled_from([b"content", b"other", b""]),
    )
    def receive(self, message_id, causes, requests, lamport, sender, content):
        asked = [entry(one, "bob") for one in requests]
        given = message(message_id, *causes, lamport=lamport, sender=sender, content=content, requests=asked)
        before = self.alice.state.snapshot()
        if content and message_id not in self.alice.state.known and message_id not in self.alice.state.incoming:
            self.causes[message_id, content] = set(causes)
        if not content and message_id not in self.alice.state.incoming:
            self.seen.add(message_id)
        effects = self.take(Receive(given))
        received = effects.received
        assert received.message_id == message_id
        if not (effects.changed or effects.appended):
            assert self.alice.state.snapshot() == before, "it changed, and would not be kept"
        if received.refused:
            assert message_id not in self.alice.state.incoming
        elif content or received.missing:
            assert (message_id in self.alice.state.incoming) == bool(received.missing and received.content)

    @rule(marked=st.lists(ids, max_size=3))
    def mark(self, marked):
        self.seen |= set(marked)
        self.look(self.alice.mark(*marked))

    @rule()
    def sync(self):
        self.synced += 1
        self.alice.sync(f"sync{self.synced}")

    @rule(passed=st.sampled_from([0, 50, 500, 2_000, 10_000, -3_000]))
    def pass_time(self, passed):
        self.alice.pass_ms(passed)

    @rule()
    def sweep_buffers(self):
        before = self.alice.state.snapshot()
        effects = self.alice.sweep_buffers()
        self.look(effects)
        assert effects.changed or self.alice.state.snapshot() == before

    @rule()
    def sweep_repairs(self):
        before = self.alice.state.snapshot()
        effects = self.alice.sweep_repairs()
        self.look(effects)
        assert effects.changed or self.alice.state.snapshot() == before

    @rule()
    def restart(self):
        self.alice.restart()

    @invariant()
    def it_holds_together(self):
        if hasattr(self, "alice"):
            self.alice.check()

    @invariant()
    def what_is_kept_is_what_comes_back(self):
        """A restart at this moment changes nothing: snapshot, history, and what the filter has to know."""
        if not hasattr(self, "alice"):
            return
        twin = Machine(self.alice.rules.participant_id, self.dialect)
        twin.rules, twin.state, twin.now = self.alice.rules, self.alice.state, self.alice.now
        twin.known = [*self.alice.known]
        before = self.alice.state
        twin.restart()
        after, now = twin.state, self.alice.now
        assert after.history.messages() == before.history.messages()
        assert after.history.tail(3) == before.history.tail(3)
        assert sorted(after.filter.ids) == sorted(before.filter.ids)
        assert after.filter.to_bytes() == before.filter.to_bytes()
        kept, again = before.snapshot(), after.snapshot()
        assert (kept.lamport, kept.outgoing, kept.met) == (again.lamport, again.outgoing, again.met)
        assert [one.entry for one in kept.requests] == [one.entry for one in again.requests]
        assert [one.entry for one in kept.responses] == [one.entry for one in again.responses]
        for one, other in zip(kept.requests, again.requests, strict=True):
            assert one == other or abs(one.due_ms - now) > T_MAX
        for one, other in zip(kept.responses, again.responses, strict=True):
            assert one == other or not 0 <= one.due_ms - now <= T_MAX
        # What a sync message released is known in memory alone: after a restart nobody waits for less.
        assert [one.message for one in kept.incoming] == [one.message for one in again.incoming]
        assert [one.missing for one in kept.incoming] == [one.missing for one in again.incoming]


class AnySequenceRfc(AnySequence):
    dialect = "rfc"


for machine in (AnySequence, AnySequenceRfc):
    machine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestAnySequenceOfNim = AnySequence.TestCase
TestAnySequenceOfRfc = AnySequenceRfc.TestCase
