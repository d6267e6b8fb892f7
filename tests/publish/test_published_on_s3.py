"""Tables on a store that speaks S3: the same commits, created once, read in place by others."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest

import holdfast
from holdfast import publish_tables, unpublish_tables
from tests.publish.worlds import keyed
from tests.store.conftest import prefix, s3_server  # noqa: F401
from tests.store.servers import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.store.shipped_logs import settings, url

pytestmark = pytest.mark.store


@pytest.mark.usefixtures("s3_server")
def test_a_topic_on_s3_is_a_table(tmp_path: Path, s3_server: S3Server, prefix: str, monkeypatch):  # noqa: F811
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    there = settings(s3_server.endpoint)
    options = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    with holdfast.open(tmp_path / "log", store=url(prefix), settings=there) as log:
        for turn in range(12):
            orders = log.topic("orders", partitions=2)
            orders.append(b"%d" % turn)
            log.seal()
            log.ship()
            (report,) = publish_tables(url(prefix), settings=there)
            assert (report.state, report.version) == ("published", turn)
        (again,) = publish_tables(url(prefix), settings=there)
        assert again.state == "unchanged"
        table = deltalake.DeltaTable(report.table, storage_options=options)
        store = {"endpoint": s3_server.endpoint}
        assert keyed(table.to_pyarrow_table()) == keyed(holdfast.read(url(prefix), "orders", store=store).to_arrow())
        assert unpublish_tables(url(prefix), settings=there) == {"orders": 14}
