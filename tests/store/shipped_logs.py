"""Logs that ship to an S3 server: their settings, what is in them, and what a restore brings back.

Credentials are given by reference (`env:`), to this process and to those that it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import holdfast
from holdfast import Keyring, Log, Settings
from holdfast.results import RestoreReport
from tests.store.servers import ACCESS_KEY, BUCKET, REGION, SECRET_KEY

Place = tuple[str, int, int]
"""Topic, partition, offset."""

_REFERENCE = "HOLDFAST_TEST_S3"
ENVIRONMENT = {f"{_REFERENCE}_ACCESS_KEY_ID": ACCESS_KEY, f"{_REFERENCE}_SECRET_ACCESS_KEY": SECRET_KEY}
"""What a process needs that ships to the server."""

_QUICK: dict[str, dict[str, object]] = {
    "store": {"region": REGION, "credentials": f"env:{_REFERENCE}", "timeout_ms": 10_000},
    "shipping": {
        "retry_base_delay_ms": 1,
        "retry_delay_max_ms": 50,
        "max_in_flight_requests": 4,
        "request_timeout_ms": 10_000,
    },
    "segments": {"seal_on_close": False},
    "disk": {"free_bytes_min": 0},
}
"""Retries that do not keep a test waiting."""


def url(prefix: str) -> str:
    """A log's root on the server."""
    return f"s3://{BUCKET}/{prefix}"


def settings(endpoint: str, **sections: Mapping[str, object]) -> Settings:
    """Settings of a log that ships to this endpoint, quick to retry; sections add to them."""
    os.environ.update(ENVIRONMENT)
    merged = {name: {**_QUICK.get(name, {}), **sections.get(name, {})} for name in {*_QUICK, *sections}}
    merged["store"]["endpoint"] = endpoint
    return Settings.from_mapping(merged)


def records(log: Log) -> dict[Place, bytes]:
    """All records of a log whose topics are raw, by place."""
    return {(name, r.partition, r.offset): r.payload for name in log.topics() for r in log.topic(name).read()}


def restored(
    endpoint: str, prefix: str, directory: Path, keyring: Keyring | None = None
) -> tuple[RestoreReport, dict[Place, bytes]]:
    """Bring back a copy into a new directory, and read it; the store is left as it is."""
    own = settings(endpoint)
    report = holdfast.restore(url(prefix), directory, settings=own, keyring=keyring, copy=True)
    with holdfast.open(directory, settings=settings("", store={"credentials": ""}), keyring=keyring) as log:
        return report, records(log)
