"""The command line reads a real S3 root, with nothing but the address, an endpoint and credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import holdfast
from holdfast import Settings
from holdfast.cli.program import program
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

pytestmark = pytest.mark.store


def test_read_topics_and_status_of_a_bucket(
    s3_server: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in segments and in commit batches, topics and marks; also under Hadoop's name for S3."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "HOLDFAST_STORE__ENDPOINT": f"http://127.0.0.1:{s3_server.port}",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    url = f"s3://{BUCKET}/{prefix}"
    with holdfast.open(tmp_path / "log", store=url, settings=Settings.load()) as log:
        log.topic("orders").append(b"sealed")
        log.seal()
        log.ship(30)
        log.topic("orders").append(b"tail", durability="shipped")
        runner = CliRunner()
        for place in (url, url.replace("s3://", "s3a://")):
            assert runner.invoke(program, ["read", place, "orders", "--raw"]).stdout == "sealed\ntail\n"
        (topic,) = map(json.loads, runner.invoke(program, ["topics", url, "--json"]).stdout.splitlines())
        assert (topic["records"], topic["tail_records"], topic["segments"]) == (2, 1, 1)
        status = json.loads(runner.invoke(program, ["status", url, "--json"]).stdout)
        assert (status["store"], status["log_id"]) == (url, log.id)
