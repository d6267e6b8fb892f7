"""Repair delays: the recorded numbers of both implementations, and their bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.channels.wire_data import NIM_VECTORS, WAKU_VECTORS, ids

from holdfast.channels.wire.message import text
from holdfast.channels.wire.nim import NIM
from holdfast.channels.wire.rfc import RFC

pytestmark = pytest.mark.unit

both = pytest.mark.parametrize("dialect", [NIM, RFC], ids=["nim", "rfc"])


def test_requests_are_due_when_nim_sds_makes_them():
    """T_req as recorded."""
    for case in NIM_VECTORS["t_req"]:
        assert NIM.request_delay_ms(case["p"], case["m"], case["tmin"], case["tmax"]) == case["ms"], case


def test_responses_are_due_when_nim_sds_makes_them():
    """T_resp as recorded."""
    for case in NIM_VECTORS["t_resp"]:
        assert NIM.response_delay_ms(case["p"], case["s"], case["m"], case["tmax"]) == case["ms"], case


def test_groups_are_those_of_nim_sds():
    """Members as recorded, for several numbers of groups."""
    assert {case["member"] for case in NIM_VECTORS["group"]} == {True, False}
    for case in NIM_VECTORS["group"]:
        assert NIM.responds(case["p"], case["s"], case["m"], case["n"]) is case["member"], case


def test_the_examples_of_the_reference():
    """Alice and bob, msg1."""
    assert NIM.request_delay_ms("alice", "msg1", 30_000, 300_000) == 119_016
    assert NIM.response_delay_ms("bob", "alice", "msg1", 300_000) == 275_232
    assert RFC.request_delay_ms("bob", "msg1", 30_000, 120_000) == 96_990
    assert RFC.response_delay_ms("bob", "alice", "msg1", 120_000) == 39_228


def test_both_are_due_when_waku_makes_them():
    """T_req and T_resp as recorded, also for ids that are not ASCII."""
    for case in WAKU_VECTORS["times"]:
        assert RFC.request_delay_ms(case["p"], case["m"], case["tMin"], case["tMax"]) == case["tReq"], case
        assert RFC.response_delay_ms(case["p"], case["s"], case["m"], case["tMax"]) == case["tResp"], case


@pytest.mark.parametrize("case", WAKU_VECTORS["odd_ids"], ids=lambda case: case["hex"])
def test_ids_that_are_no_utf8_are_due_when_waku_makes_them(case):
    """As participant and as message."""
    odd = text(bytes.fromhex(case["hex"]))
    assert RFC.request_delay_ms(odd, odd, 30_000, 120_000) == case["tReq"]
    assert RFC.response_delay_ms(odd, "alice", odd, 120_000) == case["tResp"]


def test_groups_are_those_of_waku():
    """Members as recorded; without a sender nobody is."""
    assert any(not case["s"] for case in WAKU_VECTORS["groups"])
    for case in WAKU_VECTORS["groups"]:
        assert RFC.responds(case["p"], case["s"], case["m"], case["n"]) is case["member"], case


@both
@given(participant=ids, message_id=ids, t_min=st.integers(0, 10_000), window=st.integers(-10, 10_000))
def test_requests_are_due_within_the_window(dialect, participant, message_id, t_min, window):
    """From t_min to t_max, without t_max; at t_min when there is no window."""
    delay = dialect.request_delay_ms(participant, message_id, t_min, t_min + window)
    assert t_min <= delay < t_min + max(window, 1)


@both
@given(participant=ids, sender=ids, message_id=ids, t_max=st.integers(-10, 10_000))
def test_responses_are_due_within_the_window(dialect, participant, sender, message_id, t_max):
    """From 0 to t_max, without t_max; at once when there is no window."""
    assert 0 <= dialect.response_delay_ms(participant, sender, message_id, t_max) < max(t_max, 1)


@both
@given(sender=ids, message_id=ids)
def test_the_sender_answers_first(dialect, sender, message_id):
    """At once, and always."""
    assert dialect.response_delay_ms(sender, sender, message_id, 300_000) == 0
    assert dialect.responds(sender, sender, message_id, 10) is (bool(sender) or dialect is NIM)


@both
@pytest.mark.parametrize("groups", [-1, 0, 1])
def test_everybody_answers_in_one_group(dialect, groups):
    """Also when there are said to be none."""
    assert dialect.responds("bob", "alice", "m", groups)


@both
def test_groups_share_the_work(dialect):
    """Of a thousand participants, about a hundred are in one of ten groups."""
    members = sum(dialect.responds(f"p{number}", "alice", "m", 10) for number in range(1000))
    assert 50 < members < 200
