"""A machine whose clock is wrong: every verb works, from the first one on, and it is logged once by how much."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import SystemClock
from holdfast.store.port import Body
from holdfast.store.s3.s3_store import S3Store
from tests.store import shipped_logs
from tests.store.conftest import OpenS3
from tests.store.fault_proxy import Fault, FaultProxy, Request, answer
from tests.store.servers import S3Server

pytestmark = pytest.mark.store

Proxy = Callable[..., FaultProxy]
BODY = Body.of(b"content" * 1000)
WRONG_BY = pytest.mark.parametrize("wrong_by", [7200, -2400], ids=["two hours ahead", "forty minutes behind"])
PATIENCE = 60.0


class WrongClock(SystemClock):
    def __init__(self, seconds: int) -> None:
        self._us = seconds * 10**6

    def now_us(self) -> int:
        return super().now_us() + self._us


def strict(request: Request) -> Fault | None:
    """What S3 does: a request that was signed more than a quarter of an hour ago, or will be, is refused."""
    if "x-amz-date" not in request.headers:
        return None
    signed = datetime.datetime.strptime(request.headers["x-amz-date"] + "+0000", "%Y%m%dT%H%M%SZ%z").timestamp()
    if abs(signed - time.time()) > 900:
        return answer(403, "RequestTimeTooSkewed", {"Date": formatdate(usegmt=True)})
    return None


VERBS: dict[str, Callable[[S3Store], object]] = {
    "create": lambda store: store.create("new", BODY),
    "get": lambda store: store.get("a/1"),
    "get_range": lambda store: store.get_range("a/1", 3, 5),
    "head": lambda store: store.head("a/1"),
    "list": lambda store: list(store.list("")),
    "folders": lambda store: store.folders(""),
    "delete": lambda store: store.delete(["a/1"]),
    "delete many": lambda store: store.delete(["a/1", "a/2"]),
}


@WRONG_BY
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_works_with_a_wrong_clock(
    open_s3: OpenS3, fault_proxy: Proxy, caplog: pytest.LogCaptureFixture, verb: str, wrong_by: int
) -> None:
    """The first request teaches, whatever it is, and the same is asked again; all others are signed rightly."""
    right = open_s3()
    right.create("a/1", BODY)
    expected = None if verb in ("create", "delete", "delete many") else VERBS[verb](right)
    proxy = fault_proxy(strict)
    store = open_s3(proxy.endpoint, clock=WrongClock(wrong_by))
    assert VERBS[verb](store) == expected
    assert [info.key for info in store.list("")] == [info.key for info in right.list("")]
    assert store.head("new") == right.head("new")
    assert proxy.counts["RequestTimeTooSkewed"] == (2 if verb == "head" else 1)  # the answer to a HEAD explains nothing
    logged = [record for record in caplog.records if getattr(record, "action", "") == "clock_skew"]
    assert [record.levelname for record in logged] == ["WARNING"]
    assert abs(logged[0].seconds + wrong_by) < 60  # type: ignore[attr-defined]


@WRONG_BY
def test_a_log_is_shipped_reconciled_read_and_brought_back_with_a_wrong_clock(
    s3_server: S3Server, fault_proxy: Proxy, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_by: int
) -> None:
    """The whole machine's clock is wrong: shipping, reconciling, readers, a restore that takes over."""
    true_now = SystemClock.now_us
    monkeypatch.setattr(SystemClock, "now_us", lambda self: true_now(self) + wrong_by * 10**6)
    proxy = fault_proxy(strict)
    settings = shipped_logs.settings(proxy.endpoint, segments={"rows_max": 10})
    place = shipped_logs.url(prefix)
    with holdfast.open(tmp_path / "log", store=place, settings=settings) as log:
        topic = log.topic("orders")
        topic.append_batch([b"order %d" % number for number in range(30)])
        log.seal()
        log.ship(PATIENCE)
        topic.submit(b"the last one").shipped(PATIENCE)
        assert log.reconcile(remote=True, deep=True).clean
        requests = log.stats().shipping.requests
        assert requests["list"] > 3
        expected = shipped_logs.records(log)
    assert holdfast.read(place, "orders", store=settings.store).count() == 30
    report = holdfast.restore(place, tmp_path / "restored", settings=settings)
    assert report.records == 31
    with holdfast.open(tmp_path / "restored", store=place, settings=settings) as log:
        assert shipped_logs.records(log) == expected
        log.topic("orders").submit(b"it goes on").shipped(PATIENCE)
    assert proxy.counts["RequestTimeTooSkewed"] > 0
