"""What `Channels` relies on in a backend, as tests: inherit them to prove a backend of your own.

    import pytest
    from holdfast.testing.channel_contract import PersistenceContract

    class TestMyBackend(PersistenceContract):
        @pytest.fixture
        def persistence(self, tmp_path):
            self.path = tmp_path / "channels.db"
            return MyBackend(self.path)

        def reopen(self, persistence):
            persistence.close()
            return MyBackend(self.path)

`persistence` is an empty backend. `reopen` ends it as the end of its process would and gives one that has found what is
on disk. With `failing`, a context in which it cannot write, it is also proved that a commit is kept whole or not at
all; set `atomic = False` where the two halves are two writes, as in the `commit` that `Persistence` brings along. Then
only this is demanded: history is never behind the snapshot.

This module needs pytest; no other part of holdfast imports it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from threading import Thread

import pytest

from holdfast.channels.keeping.persistence import Commit, Persistence
from holdfast.channels.keeping.snapshot import (
    ChannelData,
    ChannelMeta,
    HistoryUpdate,
    KnownMessage,
    Note,
    UnacknowledgedMessage,
)
from holdfast.testing.channel_samples import (
    ODD_IDS,
    ROOM,
    remembered,
    sample_message,
    sample_meta,
    settle,
    some,
    unique,
)

HISTORY_MESSAGES = 1_500
"""In the test of a long history."""


class PersistenceContract:
    """The contract; a subclass says which backend is meant."""

    atomic = True
    """Whether a commit is kept whole or not at all."""

    keeps = True
    """Whether anything is kept; of a backend that keeps nothing little is asked."""

    remembers = False
    """Whether ids are remembered beyond history (`HistoryUpdate.known`); then it is proved that they are."""

    finds = False
    """Whether `find_messages` finds what has left history; then it is proved that it does."""

    @pytest.fixture
    def persistence(self) -> Persistence:
        """An empty backend."""
        raise NotImplementedError("override the fixture `persistence`")

    def reopen(self, persistence: Persistence) -> Persistence:
        """Another backend over the same disk, as after a restart."""
        raise NotImplementedError("override `reopen`")

    def failing(self, persistence: Persistence) -> AbstractContextManager[object] | None:
        """A context in which nothing can be written, best of all between the halves of a commit; None: not known."""
        return None

    # -- what a test asks for -----------------------------------------------------------------------------

    def expect(self, persistence: Persistence, expected: ChannelData, channel_id: str = ROOM) -> None:
        """This is what is kept of a channel."""
        found = persistence.load_channel(channel_id)
        wanted = expected if self.keeps else ChannelData()
        assert found.meta == wanted.meta
        assert [one.message_id for one in found.history] == [one.message_id for one in wanted.history]
        assert found.history == wanted.history
        assert dict(found.hints) == dict(wanted.hints)

    def commit(
        self,
        persistence: Persistence,
        meta: ChannelMeta,
        update: HistoryUpdate,
        channel_id: str = ROOM,
        *,
        reissue: bool = False,
    ) -> None:
        """Commit and wait until it is durable."""
        settle([persistence.commit(channel_id, meta, update, reissue=reissue)])

    # -- snapshots ----------------------------------------------------------------------------------------

    def test_a_channel_that_was_never_kept_is_empty(self, persistence: Persistence) -> None:
        """Loading creates nothing and raises nothing."""
        self.expect(persistence, ChannelData())

    def test_a_snapshot_comes_back_as_it_was(self, persistence: Persistence) -> None:
        """Every field of it, in order."""
        persistence.save_channel_meta(ROOM, sample_meta())
        self.expect(persistence, ChannelData(sample_meta()))

    def test_a_snapshot_replaces_the_one_before(self, persistence: Persistence) -> None:
        """Also when it has less in it."""
        persistence.save_channel_meta(ROOM, sample_meta())
        persistence.save_channel_meta(ROOM, ChannelMeta(lamport=2, dialect="nim"))
        self.expect(persistence, ChannelData(ChannelMeta(lamport=2, dialect="nim")))

    def test_two_messages_of_ours_may_have_one_id(self, persistence: Persistence) -> None:
        """An id used twice makes two messages that wait for acknowledgement."""
        twice = [
            UnacknowledgedMessage(sample_message("same", content), number)
            for number, content in enumerate((b"1", b"2"))
        ]
        meta = ChannelMeta(outgoing=tuple(twice))
        self.commit(persistence, meta, HistoryUpdate((sample_message("same", b"2"),)))
        self.expect(persistence, ChannelData(meta, (sample_message("same", b"2"),)))

    # -- history ------------------------------------------------------------------------------------------

    def test_history_comes_back_in_the_order_of_appending(self, persistence: Persistence) -> None:
        """Whatever the ids, and over several updates."""
        first, second = some("c", "a"), some("b", "\udcff", "0")
        persistence.update_history(ROOM, HistoryUpdate(first))
        persistence.update_history(ROOM, HistoryUpdate(second))
        self.expect(persistence, ChannelData(history=(*first, *second)))

    def test_a_message_replaces_the_one_with_its_id_in_its_place(self, persistence: Persistence) -> None:
        """History keeps its order."""
        persistence.update_history(ROOM, HistoryUpdate(some("a", "b", "c")))
        newer = sample_message("b", b"newer", "a")
        persistence.update_history(ROOM, HistoryUpdate((newer,)))
        self.expect(persistence, ChannelData(history=(sample_message("a"), newer, sample_message("c"))))

    def test_displaced_messages_go_to_the_end(self, persistence: Persistence) -> None:
        """Those that are there, and those that are not; the others are replaced in their place."""
        persistence.update_history(ROOM, HistoryUpdate(some("a", "b", "c", "d")))
        newer = (sample_message("d", b"newer"), *some("b", "e"))
        persistence.update_history(ROOM, HistoryUpdate(newer, ("c",), displaced=("b", "e")))
        self.expect(persistence, ChannelData(history=(sample_message("a"), newer[0], *some("b", "e"))))

    def test_evicted_messages_are_gone(self, persistence: Persistence) -> None:
        """And evicting what was never there does no harm."""
        persistence.update_history(ROOM, HistoryUpdate(some("a", "b", "c")))
        persistence.update_history(ROOM, HistoryUpdate(some("d"), ("a", "b", "never here")))
        self.expect(persistence, ChannelData(history=some("c", "d")))

    def test_an_evicted_message_that_comes_back_is_the_newest(self, persistence: Persistence) -> None:
        """It does not take its old place."""
        persistence.update_history(ROOM, HistoryUpdate(some("a", "b")))
        persistence.update_history(ROOM, HistoryUpdate((), ("a",)))
        persistence.update_history(ROOM, HistoryUpdate(some("a")))
        self.expect(persistence, ChannelData(history=some("b", "a")))

    def test_a_change_of_history_leaves_the_snapshot_alone(self, persistence: Persistence) -> None:
        """Also when it evicts messages that the snapshot has as well."""
        meta = sample_meta()
        self.commit(persistence, meta, HistoryUpdate(tuple(entry.message for entry in meta.outgoing)))
        persistence.update_history(ROOM, HistoryUpdate(some("a"), tuple(e.message.message_id for e in meta.outgoing)))
        self.expect(persistence, ChannelData(meta, some("a")))

    def test_a_snapshot_leaves_history_alone(self, persistence: Persistence) -> None:
        """It says nothing about history."""
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a", "b")))
        persistence.save_channel_meta(ROOM, ChannelMeta(lamport=9))
        self.expect(persistence, ChannelData(ChannelMeta(lamport=9), some("a", "b")))

    def test_a_long_history_is_kept_whole(self, persistence: Persistence) -> None:
        """Appended at once, then one by one, the oldest going."""
        messages = some(*(f"m{number}" for number in range(HISTORY_MESSAGES)))
        self.commit(persistence, ChannelMeta(), HistoryUpdate(messages[:-20]))
        commits = [
            persistence.commit(ROOM, ChannelMeta(lamport=n), HistoryUpdate((messages[n - 20],), (f"m{n}",)))
            for n in range(20)
        ]
        settle(commits)
        self.expect(persistence, ChannelData(ChannelMeta(lamport=19), messages[20:]))

    # -- hints --------------------------------------------------------------------------------------------

    def test_a_hint_is_kept_with_its_message(self, persistence: Persistence) -> None:
        """The last one given counts, and it may be any bytes."""
        self.commit(persistence, ChannelMeta(), HistoryUpdate(some("a", "b")))
        persistence.set_retrieval_hint(ROOM, "a", b"old")
        persistence.set_retrieval_hint(ROOM, "a", b"\0new\xff")
        persistence.set_retrieval_hint(ROOM, "b", b"other")
        self.commit(persistence, ChannelMeta(), HistoryUpdate(some("c")))
        expected = ChannelData(ChannelMeta(), some("a", "b", "c"), {"a": b"\0new\xff", "b": b"other"})
        self.expect(persistence, expected)

    def test_a_hint_goes_with_its_message(self, persistence: Persistence) -> None:
        """A message that comes back has none."""
        self.commit(persistence, ChannelMeta(), HistoryUpdate(some("a", "b")))
        persistence.set_retrieval_hint(ROOM, "a", b"hint")
        self.commit(persistence, ChannelMeta(), HistoryUpdate((), ("a",)))
        self.commit(persistence, ChannelMeta(), HistoryUpdate(some("a")))
        self.expect(persistence, ChannelData(ChannelMeta(), some("b", "a")))

    # -- ids beyond history -------------------------------------------------------------------------------

    def test_ids_are_remembered_in_their_order(self, persistence: Persistence) -> None:
        """Over many commits, beyond history, and over a restart; with times and senders."""
        self._remembering()
        known = remembered(100)
        for number, one in enumerate(known):
            self.commit(persistence, ChannelMeta(number), HistoryUpdate(some(one.message_id), (), known=(one,)))
        self.commit(persistence, ChannelMeta(100), HistoryUpdate((), tuple(one.message_id for one in known[:90])))
        assert unique(persistence.load_channel(ROOM).known) == known
        persistence = self.reopen(persistence)
        assert unique(persistence.load_channel(ROOM).known) == known
        more = remembered(140)[100:]
        self.commit(persistence, ChannelMeta(101), HistoryUpdate(known=tuple(more)))
        assert unique(self.reopen(persistence).load_channel(ROOM).known) == remembered(140)

    def test_of_too_many_ids_the_oldest_go(self, persistence: Persistence) -> None:
        """All that are to be remembered are, and not many more."""
        self._remembering()
        known = remembered(400)
        for at in range(0, 400, 10):
            self.commit(persistence, ChannelMeta(at), HistoryUpdate(known=tuple(known[at : at + 10]), remembered=120))
        for _ in range(2):
            found = unique(persistence.load_channel(ROOM).known)
            assert found[-120:] == known[-120:]
            assert len(found) < 200
            persistence = self.reopen(persistence)

    def test_ids_whose_commit_failed_and_comes_again_are_remembered(self, persistence: Persistence) -> None:
        """None of those before is lost with it, however many there are."""
        self._remembering()
        known = remembered(80)
        self.commit(persistence, sample_meta(1), HistoryUpdate(known=tuple(known[:30])))
        with self._failing(persistence), pytest.raises(Exception):  # noqa: B017, PT011 - any failure is one
            self.commit(persistence, sample_meta(2), HistoryUpdate(some("a"), known=tuple(known[30:70])))
        again = HistoryUpdate(some("a", "b"), known=tuple(known[30:]))
        self.commit(persistence, sample_meta(3), again, reissue=True)
        assert unique(self.reopen(persistence).load_channel(ROOM).known) == known

    def test_ids_go_with_their_channel(self, persistence: Persistence) -> None:
        """A channel that is kept again has none of them."""
        self._remembering()
        self.commit(persistence, ChannelMeta(1), HistoryUpdate(known=tuple(remembered(70))))
        persistence.drop_channel(ROOM)
        assert persistence.load_channel(ROOM).known == ()

    def test_what_has_left_history_is_found(self, persistence: Persistence) -> None:
        """As it was, by its id and its time; what never was here is not, and nothing else is given."""
        if not (self.keeps and self.finds):
            pytest.skip("nothing is found beyond history: see `finds`")
        messages = [sample_message(f"m{number}", b"%d" % number, "x", "y") for number in range(50)]
        notes = [
            Note(
                "sent" if number % 3 else "delivered",
                one.message_id,
                one.sender_id,
                one.lamport or 0,
                1_000 * number,
                one.content,
                causes=one.causal_history,
            )
            for number, one in enumerate(messages)
        ]
        for message, note in zip(messages, notes, strict=True):
            known = KnownMessage(message.message_id, note.at_ms, message.sender_id)
            self.commit(persistence, ChannelMeta(), HistoryUpdate((message,), notes=(note,), known=(known,)))
        self.commit(persistence, ChannelMeta(), HistoryUpdate((), tuple(one.message_id for one in messages)))
        wanted = [KnownMessage(f"m{number}", 1_000 * number, "bob") for number in (3, 4, 5, 40)]
        found = list(persistence.find_messages(ROOM, [*wanted, KnownMessage("never here", 5_000, "bob")]))
        assert sorted(found, key=lambda one: one.message_id) == [messages[number] for number in (3, 4, 40, 5)]
        assert list(persistence.find_messages("another room", wanted)) == []
        found = list(self.reopen(persistence).find_messages(ROOM, wanted))
        assert {one.message_id for one in found} == {"m3", "m4", "m5", "m40"}

    def _remembering(self) -> None:
        if not (self.keeps and self.remembers):
            pytest.skip("ids are not remembered beyond history: see `remembers`")

    # -- commits ------------------------------------------------------------------------------------------

    def test_a_commit_keeps_snapshot_and_history(self, persistence: Persistence) -> None:
        """Messages of the snapshot that are in history, come into it, leave it, or have nothing to do with it."""
        meta = sample_meta()
        outgoing = tuple(entry.message for entry in meta.outgoing)
        waiting = meta.incoming[0].message
        self.commit(persistence, meta, HistoryUpdate((*outgoing, *some("a"))))
        self.expect(persistence, ChannelData(meta, (*outgoing, *some("a"))))
        later = ChannelMeta(2, meta.outgoing[1:], meta.incoming[1:], met=("m",), dialect="nim")
        self.commit(persistence, later, HistoryUpdate((waiting,), ("o2",)))
        self.expect(persistence, ChannelData(later, (outgoing[0], *some("a"), waiting)))
        self.commit(persistence, ChannelMeta(3), HistoryUpdate())
        self.expect(persistence, ChannelData(ChannelMeta(3), (outgoing[0], *some("a"), waiting)))

    def test_commits_take_effect_in_the_order_of_calls(self, persistence: Persistence) -> None:
        """Also when nobody waits between them."""
        commits = [
            persistence.commit(ROOM, sample_meta(n, f"{n} "), HistoryUpdate(some(f"m{n}"), (f"m{n - 3}",)))
            for n in range(12)
        ]
        settle(commits)
        self.expect(persistence, ChannelData(sample_meta(11, "11 "), some("m9", "m10", "m11")))

    def test_a_commit_that_fails_is_kept_whole_or_not_at_all(self, persistence: Persistence) -> None:
        """And in no case is the snapshot ahead of history."""
        before = ChannelData(sample_meta(1), some("a", "b"))
        self.commit(persistence, before.meta, HistoryUpdate(before.history))
        with self._failing(persistence), pytest.raises(Exception):  # noqa: B017, PT011 - any failure is one
            self.commit(persistence, sample_meta(2, "new "), HistoryUpdate(some("c"), ("a",)))
        after = ChannelData(sample_meta(2, "new "), some("b", "c"))
        found = persistence.load_channel(ROOM)
        states = [before, after] if self.atomic else [before, after, ChannelData(before.meta, after.history)]
        assert any((found.meta, found.history) == (state.meta, state.history) for state in states)

    def test_a_complete_commit_mends_what_failed_before(self, persistence: Persistence) -> None:
        """With `reissue`, whatever had become of the commits before it."""
        self.commit(persistence, sample_meta(1), HistoryUpdate(some("a", "b")))
        with self._failing(persistence):
            for number in (2, 3):
                with pytest.raises(Exception):  # noqa: B017, PT011
                    self.commit(persistence, sample_meta(number), HistoryUpdate(some(f"m{number}"), ("a",)))
        self.commit(persistence, sample_meta(4), HistoryUpdate(some("m2", "m3", "m4"), ("a",)), reissue=True)
        self.commit(persistence, sample_meta(5), HistoryUpdate(some("m5")))
        self.expect(persistence, ChannelData(sample_meta(5), some("b", "m2", "m3", "m4", "m5")))

    def test_after_a_failed_commit_nothing_is_kept_that_depends_on_it(self, persistence: Persistence) -> None:
        """A backend that answers later refuses what comes behind, until everything is repeated."""
        self.commit(persistence, sample_meta(1), HistoryUpdate(some("a")))
        commits: list[Commit | None] = []
        with self._failing(persistence):
            try:
                commits.append(persistence.commit(ROOM, sample_meta(2), HistoryUpdate(some("b"))))
            except Exception:
                pytest.skip("a commit is durable when it returns")
            commits.append(persistence.commit(ROOM, sample_meta(3), HistoryUpdate(some("c"))))
            for commit in commits:
                with pytest.raises(Exception):  # noqa: B017, PT011
                    settle([commit])
        with pytest.raises(Exception):  # noqa: B017, PT011
            self.commit(persistence, sample_meta(4), HistoryUpdate(some("d")))
        self.expect(persistence, ChannelData(sample_meta(1), some("a")))

    def _failing(self, persistence: Persistence) -> AbstractContextManager[object]:
        context = self.failing(persistence) if self.keeps else None
        if context is None:
            pytest.skip("nothing is known about how it fails: see `failing`")
        return context

    # -- channels -----------------------------------------------------------------------------------------

    def test_a_dropped_channel_is_gone(self, persistence: Persistence) -> None:
        """With its hints."""
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a")))
        persistence.set_retrieval_hint(ROOM, "a", b"hint")
        persistence.drop_channel(ROOM)
        self.expect(persistence, ChannelData())

    def test_dropping_what_was_never_kept_is_no_error(self, persistence: Persistence) -> None:
        """Nor is dropping twice."""
        persistence.drop_channel(ROOM)
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a")))
        persistence.drop_channel(ROOM)
        persistence.drop_channel(ROOM)
        self.expect(persistence, ChannelData())

    def test_a_channel_can_be_kept_again_after_it_was_dropped(self, persistence: Persistence) -> None:
        """Nothing of the old one is in the new one."""
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a", "b")))
        persistence.drop_channel(ROOM)
        self.commit(persistence, ChannelMeta(3), HistoryUpdate(some("b")))
        self.expect(persistence, ChannelData(ChannelMeta(3), some("b")))

    def test_channels_do_not_see_each_other(self, persistence: Persistence) -> None:
        """However odd and alike their ids, and those of their messages."""
        kept = {}
        for number, channel_id in enumerate(ODD_IDS):
            message = sample_message(channel_id, b"%d" % number)
            kept[channel_id] = ChannelData(
                sample_meta(number, channel_id[:500]), (message,), {channel_id: b"%d" % number}
            )
            self.commit(persistence, kept[channel_id].meta, HistoryUpdate((message,)), channel_id)
            persistence.set_retrieval_hint(channel_id, channel_id, b"%d" % number)
        dropped = ODD_IDS[::3]
        for channel_id in dropped:
            persistence.drop_channel(channel_id)
        for channel_id, data in kept.items():
            self.expect(persistence, ChannelData() if channel_id in dropped else data, channel_id)

    def test_channels_are_kept_by_several_threads_at_once(self, persistence: Persistence) -> None:
        """Each its own one."""
        failures: list[BaseException] = []

        def work(channel_id: str) -> None:
            try:
                for number in range(10):
                    self.commit(persistence, ChannelMeta(number), HistoryUpdate(some(f"m{number}")), channel_id)
            except BaseException as error:
                failures.append(error)

        threads = [Thread(target=work, args=(f"room {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        for number in range(4):
            expected = ChannelData(ChannelMeta(9), some(*(f"m{n}" for n in range(10))))
            self.expect(persistence, expected, f"room {number}")

    def test_loading_changes_nothing(self, persistence: Persistence) -> None:
        """Twice gives the same, and what comes after is kept."""
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a", "b")))
        for _ in range(2):
            self.expect(persistence, ChannelData(sample_meta(), some("a", "b")))
        self.commit(persistence, sample_meta(2), HistoryUpdate(some("c"), ("a",)))
        self.expect(persistence, ChannelData(sample_meta(2), some("b", "c")))

    # -- restarts -----------------------------------------------------------------------------------------

    def test_everything_is_there_after_a_restart(self, persistence: Persistence) -> None:
        """And goes on from there, again and again."""
        expected = ChannelData()
        for number in range(3):
            history = (*expected.history[1:], *some(f"a{number}", f"b{number}"))
            gone = tuple(one.message_id for one in expected.history[:1])
            meta = sample_meta(number, f"{number} ")
            self.commit(persistence, meta, HistoryUpdate(some(f"a{number}", f"b{number}"), gone))
            persistence.set_retrieval_hint(ROOM, f"b{number}", b"%d" % number)
            hints = {one.message_id: one.message_id[1:].encode() for one in history if one.message_id[0] == "b"}
            expected = ChannelData(meta, history, hints)
            persistence = self.reopen(persistence)
            self.expect(persistence, expected)

    def test_a_dropped_channel_is_gone_after_a_restart(self, persistence: Persistence) -> None:
        """And the others are not."""
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a")))
        self.commit(persistence, sample_meta(), HistoryUpdate(some("a")), "other")
        persistence.drop_channel(ROOM)
        persistence = self.reopen(persistence)
        self.expect(persistence, ChannelData())
        self.expect(persistence, ChannelData(sample_meta(), some("a")), "other")
