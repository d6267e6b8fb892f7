"""A client means the log that it was connected to, not whatever is served at its address."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Invalid
from tests.remote.served import ServedLog

pytestmark = pytest.mark.disk


def test_nothing_goes_to_another_log_at_the_same_address(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "other") as other:
        other.topic("t").append(b"its own")
    server = ServedLog(tmp_path / "log")
    try:
        with holdfast.connect(server.url) as log:
            topic = log.topic("t")
            topic.append(b"one")
            follower = topic.follow(0)
            assert next(follower).payload == b"one"
            server.kill()
            server.directory = tmp_path / "other"
            server.start()
            for ask in (lambda: topic.append(b"two"), lambda: list(topic.read()), log.seal, lambda: next(follower)):
                with pytest.raises(Invalid, match="another log"):
                    ask()
            server.kill()
            server.directory = tmp_path / "log"
            server.start()
            assert topic.append(b"three").offset == 1  # it is there again
    finally:
        server.kill()
    with holdfast.open(tmp_path / "other") as other:
        assert [record.payload for record in other.topic("t").read()] == [b"its own"]
