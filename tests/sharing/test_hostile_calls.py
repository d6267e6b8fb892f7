"""Calls of a client that breaks the rules: each is refused, and the log goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import HoldfastError, Invalid, Log
from holdfast.journal.queue.forwarded import ForwardedUnit
from holdfast.journal.state.operations import ChangeSpace
from holdfast.log.local_parts import parts_of
from holdfast.owner.consumer_calls import ConsumerCalls
from holdfast.owner.log_owner import LogOwner
from holdfast.owner.peer import Peer
from holdfast.owner.verbs import VERBS

pytestmark = pytest.mark.disk

plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8)
given_values = plain | st.binary(max_size=20) | st.sampled_from(["orders", "nothing", bytes(16), 0, 1])
keys = st.integers(0, 5) | st.text(max_size=3)
values = st.recursive(
    given_values, lambda inner: st.lists(inner, max_size=7) | st.dictionaries(keys, inner, max_size=3), max_leaves=12
)
WAIT = b'{"consumers":["x"],"age_max_us":1,"bytes_max":1,"at":9999999999999999}'


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with holdfast.open(tmp_path_factory.mktemp("owner") / "log") as log:
        log.topic("orders", partitions=2).append(b"one", partition=0)
        yield log


def caller() -> Peer:
    return Peer(bytes(16), 1, lambda name, body: None)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(which=st.integers(0, 1000), request_=values, raw=st.none() | st.binary(max_size=40))
def test_any_bytes_as_a_request_do_no_more_than_a_caller_could(
    owner: Log, which: int, request_: Any, raw: bytes | None
) -> None:
    port = LogOwner(owner)
    verb = VERBS[sorted(VERBS)[which % len(VERBS)]]
    try:
        body = raw if raw is not None else msgspec.msgpack.encode(request_)
    except (OverflowError, ValueError):
        return
    try:
        verb.answered(port, caller(), body)
    except HoldfastError:
        pass
    finally:
        port.stop()
    assert owner.topic("orders").marks()[0].durable >= 1
    assert owner.stats().journal.poisoned is None


def test_positions_that_are_not_a_members_own_are_not_written(owner: Log) -> None:
    consumers = ConsumerCalls(parts_of(owner))
    with owner.topic("orders").consumer("billing"):
        for puts, deletes, drop, scope in (
            ([(b"position\0billing\0orders\x000", 0, b'{"next":1,"at":9999999999999999}')], (), False, None),
            ([(b"position\0billing\0orders\x000", 0, b'{"next":1,"at":1}')], (), False, "member:00:1"),
            ([(b"position\0billing\0nothing\x000", 0, b'{"next":1,"at":9}')], (), False, "member:zz"),
            ([(b"\xff", 0, b"")], (), False, None),
            ([(b"wait\0orders", 1, b"{}")], (), False, None),
            ([(b"wait\0orders", 1, WAIT)], (), False, None),
            ([], [b"position\0billing\0orders\x000"], False, None),
            ([], [], True, None),
        ):
            unit = ForwardedUnit([ChangeSpace(b"consumers", tuple(puts), tuple(deletes), drop)], 0, 10, scope)
            guarded, queued = consumers.guard([unit])
            assert isinstance(guarded[0], ForwardedUnit)
            assert guarded[0].refusal is not None, (puts, deletes, drop)
            queued()
    assert owner.consumers()[0].partitions[0].committed == 0


def test_a_topic_that_is_not_there_is_refused_before_the_writer_sees_it(owner: Log, tmp_path: Path) -> None:
    port, no_limit = LogOwner(owner), [None, None, None]
    with pytest.raises(HoldfastError):
        VERBS["set_retention"].answered(port, caller(), msgspec.msgpack.encode(["nothing", no_limit, [], no_limit]))
    with pytest.raises(Invalid):
        VERBS["seal"].answered(port, caller(), b"\xc1")
    for policy, consumers, limit in (
        ([None, 1, None], ["a\0b"], [None, 1, None]),
        ([None, 1, None], ["c"], no_limit),
        (no_limit, ["c"], [1, None, None]),
    ):
        with pytest.raises(Invalid):
            VERBS["set_retention"].answered(
                port, caller(), msgspec.msgpack.encode(["orders", policy, consumers, limit])
            )
    port.stop()
    owner.topic("orders").append(b"two")


def test_a_member_that_names_a_partition_that_is_not_there_is_refused_and_harms_nobody(owner: Log) -> None:
    port = LogOwner(owner)
    for named in ([99], [0, 2], [2**31]):
        body = msgspec.msgpack.encode(["named", "orders", bytes(16), named, 0.0, {}])
        with pytest.raises(Invalid, match="has no partition"):
            VERBS["join_consumer"].answered(port, caller(), body)
    with owner.topic("orders").consumer("named") as consumer:
        assert consumer.partitions == (0, 1)
    port.stop()
