"""Which URLs open which store, what settings are refused, and that no refusal repeats a secret."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.errors import Invalid
from holdfast.store.address import StoreAddress, parse_url
from holdfast.store.cloud import ObjectStore
from holdfast.store.directory import DirectoryStore
from holdfast.store.memory import MemoryStore
from holdfast.store.port import Body, Store
from holdfast.store.s3.s3_store import S3Store
from holdfast.store.store_kinds import open_store
from holdfast.store.store_settings import StoreSettings

pytestmark = pytest.mark.store

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def opened(url: str, /, **settings: object) -> Store:
    return open_store(url, StoreSettings(**settings), SystemClock())  # type: ignore[arg-type]


# -- URLs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("/srv/log", StoreAddress("file", "/srv/log")),
        ("file:///srv/log/", StoreAddress("file", "/srv/log")),
        ("file://localhost/srv/a%20b", StoreAddress("file", "/srv/a b")),
        ("memory://orders", StoreAddress("memory", "orders")),
        ("s3://bucket", StoreAddress("s3", "bucket")),
        ("s3://bucket/", StoreAddress("s3", "bucket")),
        ("s3://bucket/a/b/", StoreAddress("s3", "bucket", "a/b")),
        ("gs://bucket/a", StoreAddress("gs", "bucket", "a")),
        ("az://container/a", StoreAddress("az", "container", "a")),
        (
            "abfss://container@account.dfs.core.windows.net/a",
            StoreAddress("abfss", "container@account.dfs.core.windows.net", "a"),
        ),
    ],
)
def test_a_url_says_what_and_where(url: str, address: StoreAddress) -> None:
    assert parse_url(url) == address
    assert parse_url(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relative/path",
        "ftp://host/x",
        "s3:/bucket",
        "s3://",
        "s3:///x",
        "file://host/x",
        "memory://",
        "memory://a/b",
        "http://bucket.s3.amazonaws.com/x",
        "s3://bucket/../x",
        "s3://bucket//a//b",
        "s3://bucket/.a",
        "file:///a/../b",
        "s3://[bad",
        "s3://bucket:port/x",
    ],
)
def test_what_is_no_store_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        opened(url)
    assert caught.value.hint


def test_the_refusal_lists_what_works() -> None:
    with pytest.raises(Invalid) as caught:
        opened("ftp://host/x")
    for works in ("file:///", "memory://", "s3://", "gs://", "az://"):
        assert works in caught.value.hint


@pytest.mark.parametrize(
    "url",
    [
        f"s3://user:{SECRET.replace('/', '')}@bucket/x",
        f"s3://{SECRET.replace('/', '')}@bucket/x",
        f"abfss://container:{SECRET.replace('/', '')}@account.dfs.core.windows.net/x",
        f"az://container/x?sig={SECRET.replace('/', '')}",
        f"s3://bucket/x#{SECRET.replace('/', '')}",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(url: str) -> None:
    for refuse in (lambda: opened(url), lambda: StoreSettings(url=url)):
        with pytest.raises(Invalid) as caught:
            refuse()
        assert SECRET.replace("/", "") not in str(caught.value) + repr(caught.value)
        assert "user" not in caught.value.message.split("must not carry")[0]


def test_each_kind_of_url_opens_its_store(tmp_path: Path) -> None:
    assert isinstance(opened(tmp_path.as_uri()), DirectoryStore)
    assert isinstance(opened(str(tmp_path)), DirectoryStore)
    assert isinstance(opened("memory://one"), MemoryStore)
    assert isinstance(opened("s3://bucket/prefix"), S3Store)
    assert isinstance(opened("gs://bucket/prefix"), ObjectStore)
    assert opened("s3://bucket/a/prefix/").url == "s3://bucket/a/prefix"
    assert opened(str(tmp_path / "a b")).url == (tmp_path / "a b").as_uri()


def test_the_url_may_stand_in_the_settings(tmp_path: Path) -> None:
    assert opened("", url=tmp_path.as_uri()).url == tmp_path.as_uri()
    assert opened("memory://given", url=tmp_path.as_uri()).url == "memory://given"


def test_memory_is_shared_by_name() -> None:
    opened("memory://shared").create("a", Body.of(b"x"))
    opened("memory://shared").close()
    assert opened("memory://shared").get("a") == b"x"
    assert opened("memory://another").head("a") is None


def test_other_clouds_can_be_opened() -> None:
    """What obstore gives for free: no request is made yet."""
    for url in ("gs://bucket/prefix", "abfss://container@account.dfs.core.windows.net/prefix"):
        store = open_store(url, StoreSettings(), SystemClock())
        assert store.url == url
        store.close()


def test_opening_asks_nothing_of_the_store() -> None:
    """A log opens while its store is away."""
    opened("s3://bucket/prefix", endpoint="https://nobody.invalid").close()


@pytest.mark.parametrize(
    ("url", "loaded"), [("memory://x", []), ("s3://bucket/x", ["h11"]), ("gs://bucket/x", ["obstore"])]
)
def test_each_store_loads_its_own_client_and_no_other(url: str, loaded: list[str]) -> None:
    code = (
        "import sys; from holdfast.clock import SystemClock; from holdfast.store.store_kinds import open_store; "
        "from holdfast.store.store_settings import StoreSettings; "
        f"open_store({url!r}, StoreSettings(), SystemClock()); "
        "print([name for name in ('obstore', 'h11', 'botocore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(loaded)


@pytest.mark.parametrize(("url", "extra"), [("gs://bucket/x", "gcs"), ("az://container/x", "azure")])
def test_without_its_client_a_cloud_names_its_extra(url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("holdfast.store.cloud")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(Invalid, match=extra) as caught:
        opened(url)
    assert f"holdfast-log[{extra}]" in caught.value.hint


# -- addresses of buckets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "settings", "endpoint"),
    [
        ("s3://logs/x", {"region": "eu-central-1"}, "https://logs.s3.eu-central-1.amazonaws.com"),
        ("s3://my.logs/x", {"region": "eu-central-1"}, "https://s3.eu-central-1.amazonaws.com"),
        ("s3://logs/x", {"region": "cn-north-1"}, "https://logs.s3.cn-north-1.amazonaws.com.cn"),
        ("s3://logs/x", {"path_style": "yes", "region": "us-west-2"}, "https://s3.us-west-2.amazonaws.com"),
        ("s3://logs/x", {"endpoint": "https://minio:9000/"}, "https://minio:9000"),
        ("s3://logs/x", {"endpoint": "https://minio:9000", "path_style": "no"}, "https://logs.minio:9000"),
    ],
)
def test_the_bucket_stands_in_the_host_or_in_the_path(url: str, settings: dict[str, str], endpoint: str) -> None:
    store = opened(url, **settings)
    assert isinstance(store, S3Store)
    place = store._live().endpoint_state.route.place
    assert f"{place.scheme}://{place.host_header}" == endpoint
    in_path = f"/{url.split('/')[2]}/x"
    assert place.folder == ("/x" if "logs." in endpoint else in_path)


def test_the_region_comes_from_the_environment_when_it_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    store = opened("s3://logs/x")
    assert isinstance(store, S3Store)
    store._live().endpoint_state.settle_region()
    assert store._live().endpoint_state.route.region == "eu-north-1"
    assert store._live().endpoint_state.route.place.host == "logs.s3.eu-north-1.amazonaws.com"


def test_certificates_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="certificates path="):
        opened("s3://logs/x", ca_file=str(tmp_path / "gone.pem"))
    (tmp_path / "garbage.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
    with pytest.raises(Invalid, match="certificates path="):
        opened("s3://logs/x", ca_file=str(tmp_path / "garbage.pem"))


def test_an_account_that_nobody_named_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(Invalid, match="cannot be opened") as caught:
        open_store("az://container/x", StoreSettings(), SystemClock())
    assert "account" in caught.value.hint


def test_an_endpoint_where_it_has_no_meaning_is_refused() -> None:
    with pytest.raises(Invalid, match=r"store\.endpoint"):
        open_store("gs://bucket/x", StoreSettings(endpoint="https://minio"), SystemClock())


# -- settings ---------------------------------------------------------------------------------------------


def test_defaults_are_good() -> None:
    settings = StoreSettings()
    assert (settings.retries, settings.timeout_ms, settings.allow_http) == (3, 30_000, False)
    assert not settings.is_path_style
    assert StoreSettings(endpoint="https://minio:9000").is_path_style


@pytest.mark.parametrize("credentials", ["", "profile:ops", "profile:ops team@x", "env:BACKUP", "file:/run/secrets/s3"])
def test_credentials_are_named(credentials: str) -> None:
    assert StoreSettings(credentials=credentials).credentials == credentials


@pytest.mark.parametrize(
    "credentials",
    [
        SECRET,
        f"AKIAIOSFODNN7EXAMPLE:{SECRET}",
        f"profile:{SECRET}",
        f"env:{SECRET}",
        "env:AKIAIOSFODNN7EXAMPLE",
        "secret:x",
        "profile:",
        "env:",
        "file:",
        "env:a-b",
    ],
)
def test_what_looks_like_a_secret_is_refused_and_not_repeated(credentials: str) -> None:
    with pytest.raises(Invalid, match=r"store\.credentials") as caught:
        StoreSettings(credentials=credentials)
    assert SECRET not in str(caught.value)
    assert "AKIA" not in str(caught.value)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:8333", "http://localhost:8333", "http://[::1]:8333"])
def test_http_is_fine_on_this_machine(endpoint: str) -> None:
    StoreSettings(endpoint=endpoint)


@pytest.mark.parametrize(
    "endpoint", ["http://minio:9000", "http://10.0.0.1", "http://localhost.example", "http://128.0.0.1"]
)
def test_http_to_another_machine_must_be_allowed(endpoint: str) -> None:
    with pytest.raises(Invalid, match="allow_http"):
        StoreSettings(endpoint=endpoint)
    StoreSettings(endpoint=endpoint, allow_http=True)


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "https://", "https://minio:port", "https://[x"])
def test_an_endpoint_is_a_url(endpoint: str) -> None:
    with pytest.raises(Invalid, match=r"store\.endpoint"):
        StoreSettings(endpoint=endpoint)


def test_an_endpoint_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(Invalid, match=r"store\.endpoint") as caught:
        StoreSettings(endpoint="https://user:hunter2@minio:9000")
    assert "hunter2" not in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        StoreSettings(
            url="ftp://x", endpoint="http://far", path_style="maybe", credentials="x", retries=-1, timeout_ms=0
        )
    for name in ("url", "endpoint", "path_style", "credentials", "retries", "timeout_ms"):
        assert f"store.{name}" in caught.value.message
