"""Metrics of open logs: the same numbers as `stats()` and the marks, as Prometheus' own parsers read them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import holdfast
from holdfast import telemetry
from holdfast.telemetry import collecting, metric_list
from holdfast.telemetry.metric import OTHER
from holdfast.telemetry.openmetrics import OPENMETRICS, TEXT, accepts_openmetrics

pytestmark = pytest.mark.disk

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def parsed(body: bytes, content_type: str) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Samples by name and labels, read by Prometheus' own parser."""
    parse = openmetrics_parser.text_string_to_metric_families if content_type == OPENMETRICS else None
    families = (parse or text_string_to_metric_families)(body.decode())
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in families:
        for sample in family.samples:
            labels = frozenset(sample.labels.items())
            assert labels not in found.setdefault(sample.name, {}), sample
            found[sample.name][labels] = sample.value
    return found


def one(samples: dict[str, dict[frozenset[tuple[str, str]], float]], name: str, **labels: str) -> float:
    wanted = {(f"holdfast_{key}", value) for key, value in labels.items()}
    values = [value for found, value in samples[name].items() if wanted <= found]
    assert len(values) == 1, (name, labels, values)
    return values[0]


@pytest.mark.parametrize("accept", ["", PROMETHEUS], ids=["text", "OpenMetrics"])
def test_what_is_rendered_is_what_the_log_says(tmp_path: Path, accept: str) -> None:
    """Totals, levels, histograms and marks, of a log that ships; in both formats."""
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        orders = log.topic("orders", partitions=2)
        for number in range(5):
            orders.append(b"x", partition=number % 2)
        log.seal()
        log.ship()
        orders.append(b"tail", partition=0)
        consumer = orders.consumer("billing")
        consumer.close()
        body, content_type = telemetry.render([log], accept=accept)
        stats, marks = log.stats(), log.marks("orders")
    assert content_type == (OPENMETRICS if accept else TEXT)
    found = parsed(body, content_type)
    assert one(found, "holdfast_append_records_total", log=log.id, role="owner") == stats.journal.records_total
    assert one(found, "holdfast_seal_segments_total", role="owner") == 2
    assert one(found, "holdfast_append_duration_seconds_count") == stats.journal.append_seconds.count
    assert one(found, "holdfast_commit_duration_seconds_sum") == pytest.approx(stats.journal.commit_seconds.total)
    assert one(found, "holdfast_mark", topic="orders", partition="0", stage="durable") == marks[0].durable == 4
    assert one(found, "holdfast_mark", topic="orders", partition="1", stage="settled") == marks[1].settled == 2
    assert one(found, "holdfast_lag", topic="orders", stage="sealed") == 1
    assert one(found, "holdfast_consumer_lag", consumer="billing", topic="orders") == 6
    assert one(found, "holdfast_ship_failures_total", cause="timeout") == 0
    assert one(found, "holdfast_journal_poisoned") == 0


def test_every_metric_is_reported_by_some_log(tmp_path: Path) -> None:
    """A definition whose reader never gives anything would be noticed here; those of sharing wait for their stage."""
    with holdfast.open(tmp_path / "log", store=tmp_path / "store") as log:
        log.topic("orders").append(b"x")
        log.executions.start("import", id="00000000-0000-0000-0000-000000000001")
        log.topic("orders").consumer("billing").close()
        log.seal()
        log.reconcile()
        names = {metric.name for metric in collecting.collect([log])}
    silent = {metric.name for metric in metric_list.METRICS} - names
    assert silent == {"holdfast.share.clients", "holdfast.share.sessions"}


def test_a_shared_log_is_reported_by_its_owner_and_by_each_client(tmp_path: Path) -> None:
    """Under roles of their own, so that nothing is counted twice; and the owner says how many clients it has."""
    with holdfast.open(tmp_path / "log", share=True) as log:
        log.topic("orders").append_batch([b"x"] * 3)
        found = parsed(*telemetry.render([log]))
    for role in ("owner", "client"):
        assert one(found, "holdfast_append_records_total", role=role) == 3
        assert one(found, "holdfast_append_duration_seconds_count", role=role) == 1
    assert one(found, "holdfast_share_clients", role="owner") == 1
    assert one(found, "holdfast_share_sessions", role="owner") == 1
    assert telemetry.render([log]) == (b"", TEXT)


def test_labels_are_bounded(tmp_path: Path) -> None:
    """Beyond the limit, partitions and consumers are added up; the oldest stay, whatever is created later."""
    limits = {"telemetry": {"partitions_max": 3, "consumers_max": 1}}
    with holdfast.open(tmp_path / "log", settings=limits) as log:
        for name in ("zebra", "yak"):
            log.topic(name, partitions=2).append_batch([b"1", b"2"], partition=1)
        log.topic("ant", partitions=5).append_batch([b"1"] * 7, partition=4)
        for name in ("billing", "audit"):
            log.topic("zebra").consumer(name).close()
        found = parsed(*telemetry.render([log]))
    places = {(dict(labels)["holdfast_topic"], dict(labels)["holdfast_partition"]) for labels in found["holdfast_mark"]}
    assert places == {("zebra", "0"), ("zebra", "1"), ("yak", "0"), (OTHER, OTHER)}
    assert one(found, "holdfast_mark", topic=OTHER, stage="durable") >= 2 + 7
    topics = {dict(labels)["holdfast_topic"] for labels in found["holdfast_lag"]}
    assert topics == {"zebra", OTHER}
    assert len(found["holdfast_consumer_lag"]) == 2
    assert one(found, "holdfast_consumer_lag", consumer=OTHER, topic=OTHER) == 2


def test_all_logs_of_a_process_are_reported_while_they_are_open(tmp_path: Path) -> None:
    """Two handles of one log are one point; a log that was closed, or forgotten by a fork, is none."""
    with holdfast.open(tmp_path / "one") as first, holdfast.open(tmp_path / "two") as second:
        first.topic("orders").append(b"x")
        readers = [holdfast.open(tmp_path / "one", read_only=True) for _ in range(2)]
        found = parsed(*telemetry.render())
        places = {(dict(labels)["holdfast_log"], dict(labels)["holdfast_role"]) for labels in found["holdfast_open"]}
        assert places == {(first.id, "owner"), (second.id, "owner"), (first.id, "reader")}
        assert one(found, "holdfast_mark", log=first.id, role="reader", topic="orders", stage="durable") == 1
        assert len(found["holdfast_append_records_total"]) == 2  # readers append nothing
        child = os.fork()
        if child == 0:
            os._exit(0 if telemetry.render() == (b"", TEXT) else 1)
        assert os.waitpid(child, 0)[1] == 0
        for reader in readers:
            reader.close()
    assert telemetry.render([first, second]) == (b"", TEXT)


def test_a_scrape_while_everything_is_at_work_is_whole(tmp_path: Path) -> None:
    """Appends, seals and new topics go on beside it; every scrape parses, and totals never go back."""
    from threading import Thread

    with holdfast.open(tmp_path / "log") as log:

        def work() -> None:
            for number in range(30):
                log.topic(f"topic-{number}").append_batch([b"x"] * 10)
                if number % 10 == 9:
                    log.seal()

        thread, last = Thread(target=work), 0.0
        thread.start()
        while thread.is_alive():
            found = parsed(*telemetry.render([log], accept=PROMETHEUS))
            records = one(found, "holdfast_append_records_total")
            assert records >= last
            last = records
        thread.join()
        assert one(parsed(*telemetry.render([log])), "holdfast_append_records_total") == 300


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        (PROMETHEUS, True),
        ("application/openmetrics-text;q=0", False),
        ("text/plain,application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=no", False),
        (";;,=,q=;" * 100_000, False),
    ],
)
def test_the_format_is_what_is_accepted(accept: str, is_open: bool) -> None:
    """As Prometheus asks for it, and as nobody should."""
    assert accepts_openmetrics(accept) is is_open


def test_the_command_line_reads_beside_the_owner(tmp_path: Path) -> None:
    """Text that Prometheus reads, and JSON with the same values; nothing that a reader cannot know."""
    place = tmp_path / "log"

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "holdfast", "metrics", str(place), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    with holdfast.open(place) as log:
        log.topic("orders").append_batch([b"x"] * 3)
        text, lines = run(), [json.loads(line) for line in run("--json").splitlines()]
        found = parsed(run("--openmetrics").encode(), OPENMETRICS)
    assert one(parsed(text.encode(), TEXT), "holdfast_mark", topic="orders", stage="durable", role="reader") == 3
    assert one(found, "holdfast_lag", topic="orders", stage="sealed") == 3
    assert one(found, "holdfast_tail_records", role="reader") == 3
    assert "holdfast_append_records_total" not in text
    marks: list[Any] = [line for line in lines if line["name"] == "holdfast.mark"]
    assert {line["attributes"]["holdfast.stage"]: line["value"] for line in marks}["durable"] == 3
    assert len(lines) == sum(not line.startswith("#") for line in text.splitlines())
