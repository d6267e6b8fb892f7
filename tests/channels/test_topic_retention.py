"""The topic `_channels` grows with everything that strangers send: it has limits of its own."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Settings
from holdfast.channels import Channels, Link

pytestmark = pytest.mark.disk


def flooded(path, channels=None, retention=None, policy=None):
    """A log in which a stranger has said much, and what is left of `_channels` then."""
    settings = {
        "channels": {"bloom_capacity": 20, "history_max": 20, **(channels or {})},
        "retention": retention or {},
        "segments": {"rows_max": 10},
    }
    with holdfast.open(path, settings=Settings.from_mapping(settings)) as log, Channels("mallory") as stranger:
        alice = log.channels("alice")
        alice.ensure_channel("room")
        door = Link(alice, lambda data: None)
        Link(stranger, door.receive)
        if policy is not None:
            log.set_retention("_channels", **policy)
        other = log.topic("other")
        for _ in range(6):
            for _ in range(10):
                door.receive(stranger.wrap_outgoing_message(bytes(1_000), "room"))
            other.append_batch([bytes(1_000)] * 10)
            log.seal()
        log.retain()
        assert len(list(other.read())) == 60 or retention
        assert alice.channel("room").stats().delivered_total == 60
        return len(list(log.topic("_channels").read()))


def test_it_has_limits_unless_it_is_set_otherwise(tmp_path):
    """Bytes or age; the defaults are far beyond this; 0 is no limit."""
    assert flooded(tmp_path / "defaults") == 60
    assert flooded(tmp_path / "bytes", {"topic_bytes_max": 1_000}) <= 20
    assert flooded(tmp_path / "age", {"topic_age_max_ms": 0.001}) == 0
    assert flooded(tmp_path / "none", {"topic_bytes_max": 0, "topic_age_max_ms": 0}) == 60


def test_a_policy_of_its_own_wins(tmp_path):
    """Also one without limits, which keeps it forever."""
    small = {"topic_bytes_max": 1_000, "topic_age_max_ms": 0.001}
    assert flooded(tmp_path / "forever", small, policy={}) == 60
    assert flooded(tmp_path / "records", small, policy={"records_max": 30}) == 30


def test_of_the_general_limits_and_its_own_the_smaller_one_counts(tmp_path):
    assert flooded(tmp_path / "general", retention={"records_max": 20}) == 20
    assert flooded(tmp_path / "both", {"topic_bytes_max": 1_000}, {"records_max": 40}) <= 20


def test_the_defaults_bound_it():
    settings = Settings().channels
    assert 0 < settings.topic_bytes_max <= 2**30
    assert 0 < settings.topic_age_max_ms <= 365 * 24 * 3600 * 1000
