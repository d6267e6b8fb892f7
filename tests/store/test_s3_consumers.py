"""Positions of consumers come back from a real S3 server."""

from __future__ import annotations

import pytest

from tests.consumers.test_restored_positions import lost_and_restored
from tests.store import shipped_logs

pytestmark = pytest.mark.store


def test_a_log_restored_from_s3_goes_on_where_its_consumers_were(s3_server, prefix, tmp_path, keyring):
    """Encrypted and signed, several times over."""
    settings = shipped_logs.settings(s3_server.endpoint)
    lost_and_restored(tmp_path, shipped_logs.url(prefix), settings, {"keyring": keyring})
