"""The console: a page that shows the log, reads only what its token may, and never runs what a record says."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow as pa
import pytest

import holdfast
from holdfast.server.route_table import ROUTES
from pyspark_holdfast.pipeline.reports import report_page
from tests.pipeline.report_data import history_of, run_report, table_report
from tests.server.browser import Browser, Page, browsing, chromium
from tests.server.conftest import MAIN, Server, serving

pytestmark = pytest.mark.disk

FOLDER = files("holdfast.server").joinpath("console")
FILES = {one.name: one.read_text(encoding="utf-8") for one in FOLDER.iterdir()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
PAGE = FILES["console.html"]
HOSTILE = """</td></script><img src=x onerror="window.pwned=1;alert(1)"><script>window.pwned=1;alert(2)</script>"""

HOSTILE_NAME = """<img src=x onerror="window.pwned=1;alert(3)">"""
"""What the names of executions and steps allow."""


# -- what is served ---------------------------------------------------------------------------------------


def test_the_page_is_served_to_everybody_and_says_nothing(server):
    """It holds no data, so it needs no token; no other page may show it, and nothing keeps it."""
    page = server.get("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.body.decode() == PAGE
    policy = dict(part.strip().partition(" ")[::2] for part in page.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    head = server.ask("HEAD", "/")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(page.body)))
    assert server.post("/").status == 405


def test_every_file_is_served_and_no_other(server):
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    for name, text in FILES.items():
        found = server.get(f"/console/{name}")
        if name == "console.html":
            assert found.kind == "NotFound"
            continue
        assert (found.status, found.body.decode()) == (200, text)
        assert found.headers["content-type"] == kinds[Path(name).suffix]
        assert found.headers["x-content-type-options"] == "nosniff"
    for name in ("nothing.js", "..%2fserving.py", "%2e%2e/serving.py", "", "console_start.js%00"):
        assert server.get(f"/console/{name}").status == 404


def test_pages_of_other_sites_get_nothing(server):
    assert server.get("/", headers={"sec-fetch-site": "cross-site"}).status == 403
    assert server.get("/", headers={"host": "evil.example"}).status == 421


@pytest.mark.parametrize(("options", "settings"), [(["--no-console"], {}), ([], {"console": "false"})])
def test_a_server_can_have_no_console(serve, tmp_path, options, settings):
    server = serve(tmp_path / "log", *options, **settings)
    assert server.get("/").kind == "NotFound"
    assert server.get("/console/console_start.js").kind == "NotFound"
    assert server.get("/v1").status == 200


def test_marks_first_offsets_and_retention_are_shown(server):
    """Over public routes: one request tells of all topics."""
    server.append("shown", "a", "b")
    assert "marks" not in server.get("/v1/topics").json["topics"][0]
    listed = {one["name"]: one for one in server.get("/v1/topics?marks=true").json["topics"]}
    assert listed["shown"]["marks"][0]["durable"] == 2
    assert server.get("/v1/topics?marks=maybe").status == 400
    topic = server.get("/v1/topics/shown").json
    assert (topic["first"], topic["retention"]) == ([0], None)
    asked = {"age_max_s": 60, "records_max": 10}
    assert server.ask("PUT", "/v1/topics/shown/retention", asked).status == 200
    assert server.get("/v1/topics/shown").json["retention"] == {"bytes_max": None, **asked}


# -- what it is made of -----------------------------------------------------------------------------------


def test_every_path_that_it_asks_for_is_a_route():
    """The scripts name paths in one place, and each is a route that answers GET."""
    known = {route.path for route in ROUTES if route.method == "GET"}
    named = {name: re.findall(r"""["'`](/\w[^"'`$\s]*)["'`]""", text) for name, text in SCRIPTS.items()}
    asked = named.pop("console_requests.js")
    assert len(asked) == len(set(asked)) >= 10
    assert set(asked) <= known
    assert not any(named.values())
    used = {name for text in SCRIPTS.values() for name in re.findall(r"\bPATHS\.(\w+)", text)}
    assert used == set(re.findall(r"^  (\w+): \"/", SCRIPTS["console_requests.js"], re.MULTILINE))
    everything = "".join(SCRIPTS.values())
    assert everything.count("fetch(") == 1
    assert not re.search(r"\bmethod:|XMLHttpRequest|sendBeacon|WebSocket|EventSource\(", everything)


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_comes_from_elsewhere_and_nothing_makes_markup(name):
    text = FILES[name].replace('xmlns="http://www.w3.org/2000/svg"', "") if name.endswith(".svg") else FILES[name]
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", text)
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|setHTML"
    assert not re.search(rf"{banned}|createContextualFragment|javascript:|localStorage|document\.cookie", text)
    assert not re.search(r"""set(?:Timeout|Interval)\(\s*["'`]|\.on[a-z]+ *=[^=>]""", text)


def test_the_page_has_nothing_inline():
    assert re.findall(r"<script[^>]*>(.*?)</script>", PAGE, re.DOTALL) == [""]
    assert not re.search(r"<style|\bstyle=|\son\w+=", PAGE)
    loaded = re.findall(r"""(?:src|href)="([^"#][^"]*)\"""", PAGE)
    assert set(loaded) == {
        f"/console/{name}" for name in ("console_icon.svg", "console_style.css", "console_start.js")
    } | {"/docs"}
    imported = {one for text in SCRIPTS.values() for one in re.findall(r'from "\./([\w.]+)"', text)}
    assert imported | {"console_start.js"} == set(SCRIPTS)


# -- in a browser -----------------------------------------------------------------------------------------


def filled(path: Path) -> None:
    """A log of several topics, with everything in it that could be taken for markup."""
    evil = HOSTILE.encode()
    with holdfast.open(path) as log:
        orders = log.topic("orders", partitions=3)
        for n in range(130):
            orders.submit(json.dumps({"order": n}).encode(), key=b"c-%d" % (n % 7), partition=0 if n < 100 else 1)
        orders.append(b"the very newest", partition=2)
        hostile = log.topic("hostile")
        hostile.append(evil, key=evil, kind=HOSTILE[:64], headers={"trace": evil, HOSTILE: b"x"})
        hostile.append(json.dumps({"__proto__": HOSTILE, HOSTILE: [HOSTILE]}).encode())
        hostile.append(b"\x00\xff" + evil, key=b"\x00\xff" + evil)
        large = log.topic("large")
        large.append(b"x" * 300_000)
        large.append(b"\x00" * 300_000)
        log.topic("packed", codec="msgpack").append({"n": HOSTILE})
        schema = pa.schema([("id", pa.int64()), (HOSTILE, pa.string()), ("at", pa.timestamp("us", "UTC"))])
        rows = log.topic("rows", schema=schema, key="id")
        now = datetime.datetime.now(datetime.UTC)
        rows.append([{"id": 2**63 - 1, HOSTILE: HOSTILE, "at": now}, {"id": 5, HOSTILE: None, "at": now}])
        with orders.consumer("billing") as consumer:
            consumer.poll(10)
            consumer.commit()
        with log.execution(HOSTILE_NAME, id=holdfast.execution_id("console", "1")) as ctx:
            ctx.step("charge", len, "ab")
            ctx.step(HOSTILE_NAME, len, "abc")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium")
    with browsing(program, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a log that has something to show."""
    directory = tmp_path_factory.mktemp("console") / "log"
    filled(directory)
    with serving() as start:
        yield start(directory)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.page()
    yield page
    assert page.said == []
    assert page.dialogs == []
    assert {one["method"] for one in page.asked} == {"GET"}


def is_unharmed(page: Page) -> None:
    """Nothing that a record says has run, or has become an element."""
    assert page.run("window.pwned === undefined && ({}).polluted === undefined")
    assert page.run("document.querySelectorAll('main img, main script, main iframe').length") == 0


def opened(page: Page) -> str:
    """Open all records; all that can be read then."""
    page.run("document.querySelectorAll('button.open').forEach((one) => one.click())")
    return page.text()


@pytest.mark.browser
def test_it_shows_topics_and_their_marks(page, shown):
    page.go(f"{shown.url}/")
    page.sees("orders")
    page.sees("Ready")
    text = page.text()
    assert "raw, 3 partitions" in text
    assert "msgpack" in text
    assert "typed" in text
    assert shown.started["log"] in text
    assert "_executions" not in text
    page.run("document.getElementById('own').click()")
    page.sees("_executions")
    rates = "document.querySelectorAll('.tile.appends .big')[0].textContent"
    page.until(f"/^[0-9]/.test({rates})")
    shown.append("ticking", *["a"] * 50)
    page.sees("ticking")


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_its_window(browser, shown, tmp_path, width):
    """The console, with everything open, and the page of a pipeline whose table lies far down: on a phone, too."""
    report = tmp_path / "report.html"
    table = table_report(place="s3://bucket/" + "deep/" * 40 + "x" * 100)
    report.write_text(report_page.page(history_of(run_report(table))))
    page = browser.page()
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    views = {"": "orders", "#/topics/rows": "2 records", "#/topics/hostile": "3 records", "#/executions": "1 execution"}
    seen = {f"{shown.url}/{view}": said for view, said in views.items()} | {report.as_uri(): "Last runs"}
    for url, said in seen.items():
        page.go(url)
        page.sees(said)
        opened(page)
        wide = page.run("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide[0] <= wide[1], url


@pytest.mark.browser
def test_it_asks_for_nothing_while_nobody_looks(page, shown):
    """A tab in the background is quiet, and catches up when it is looked at again; so is a console that is paused."""
    page.go(f"{shown.url}/")
    page.sees("orders")
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    tell = "; document.dispatchEvent(new Event('visibilitychange')); true"
    page.run(hide % "true" + tell)
    page.idle(1.0)  # what was on its way
    before = len(page.asked)
    page.idle(6.0)  # three looks
    assert len(page.asked) == before
    page.run(hide % "false" + tell)
    shown.append("meanwhile", "a")
    page.sees("meanwhile")
    page.click("Pause")
    page.idle(1.0)
    before = len(page.asked)
    page.idle(6.0)
    assert len(page.asked) == before
    page.click("Go on")
    shown.append("thereafter", "a")
    page.sees("thereafter")


@pytest.mark.browser
def test_it_shows_the_newest_of_all_partitions_page_by_page(page, shown):
    """In the order of time, though one partition is much longer; back and forth, from an offset, by key."""
    page.go(f"{shown.url}/#/topics/orders")
    page.sees("50 records, the newest on top")
    assert page.run("document.querySelector('.records .payload').textContent") == "the very newest"
    seen = [page.run("[...document.querySelectorAll('.open')].map((one) => one.textContent)")]
    for _ in range(2):
        page.click("← Older")
        page.until(f"document.querySelector('.open').textContent !== {json.dumps(seen[-1][0])}")
        seen.append(page.run("[...document.querySelectorAll('.open')].map((one) => one.textContent)"))
    page.sees("there are no older ones")
    assert [len(one) for one in seen] == [50, 50, 31]
    flat = [one for part in seen for one in part]
    expected = [f"0:{n}" for n in range(100)] + [f"1:{n}" for n in range(30)] + ["2:0"]
    assert flat == expected[::-1]
    page.click("Newer →")
    page.until(f"document.querySelector('.open').textContent === {json.dumps(seen[1][0])}")
    page.fill("#partition", "0")
    page.until("document.querySelector('.open').textContent === '0:99'")
    page.fill("#mode", "offset")
    page.fill("#value", "10")
    page.click("Show")
    page.until("[...document.querySelectorAll('.open')].at(-1).textContent === '0:10'")
    page.click("← Older")
    page.until("document.querySelectorAll('.open').length === 10")
    page.fill("#mode", "key")
    page.fill("#value", "c-3")
    page.click("Show")
    page.until("[...document.querySelectorAll('.records .key')].every((one) => one.textContent === 'c-3')")
    assert not any("c-3" in one["url"] for one in page.asked)
    page.fill("#mode", "time")
    page.fill("#value", "2020-01-01T00:00:00")
    page.click("Show")
    page.until("[...document.querySelectorAll('.open')].at(-1).textContent === '0:0'")
    assert "billing" in page.text()
    assert page.run(
        "[...document.querySelectorAll('td')].some((one) => one.dataset.label === 'lag' && one.textContent === '121')"
    )


@pytest.mark.browser
def test_it_follows_live(page, shown):
    shown.append("live", "before")
    page.go(f"{shown.url}/#/topics/live")
    page.sees("before")
    page.click("Follow live")
    page.sees("Following")
    shown.append("live", *[f"line {n}" for n in range(300)])
    page.sees("line 299")
    page.sees("300 so far")
    assert page.run("document.querySelectorAll('.open').length") <= 200
    page.click("Stop following")
    page.sees("50 records, the newest")


@pytest.mark.browser
def test_what_a_record_says_is_text_and_never_runs(page, shown):
    page.go(f"{shown.url}/#/topics/hostile")
    page.sees("3 records, the newest")
    text = opened(page)
    assert text.count(HOSTILE) >= 3
    assert json.dumps(HOSTILE) in text
    is_unharmed(page)
    page.run("location.hash = '#/topics/packed'")
    page.sees("1 record, the newest")
    assert json.dumps({"n": HOSTILE}, separators=(",", ":")) in page.text()
    assert "raw: msgpack" in page.text()
    is_unharmed(page)
    page.run("location.hash = '#/topics/rows'")
    page.sees("2 records, the newest")
    assert HOSTILE in opened(page)
    assert "9223372036854775807" in page.text()  # not rounded
    is_unharmed(page)
    number = holdfast.execution_id("console", "1")
    page.run("location.hash = '#/executions'")
    page.sees(HOSTILE_NAME)
    is_unharmed(page)
    page.run(f"location.hash = '#/executions/{number}'")
    page.sees("charge")
    page.sees("completed")
    assert page.text().count(HOSTILE_NAME) == 2
    is_unharmed(page)


@pytest.mark.browser
def test_what_an_address_says_is_text_too(page, shown):
    page.go(f"{shown.url}/#/topics/{quote(HOSTILE, safe='')}")
    page.sees(HOSTILE)
    page.sees("What helps")
    is_unharmed(page)
    page.said.clear()  # the refusal of that topic
    with pytest.raises(AssertionError, match="TrustedHTML"):
        page.run(f"document.body.innerHTML = {json.dumps(HOSTILE)}")  # a defect of ours would end here
    is_unharmed(page)
    page.said.clear()


@pytest.mark.browser
def test_large_payloads_are_cut_and_their_size_is_said(page, shown):
    page.go(f"{shown.url}/#/topics/large")
    page.sees("2 records, the newest")
    text = opened(page)
    assert "text, 293.0 KiB; only the beginning is shown" in text
    assert "bytes, 293.0 KiB; the first 1.0 KiB are shown" in text
    assert len(text) < 40_000


@pytest.mark.browser
def test_executions_are_listed_by_status(page, shown):
    page.go(f"{shown.url}/#/executions")
    page.sees("1 execution.")
    page.fill("#status", "failed")
    page.sees("No executions")
    assert not any("reveal" in one["url"] for one in page.asked)


def create_token(directory: Path, name: str, *options: str) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", MAIN, "token", "create", str(directory), name, *options],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = re.search(r"hft1_\S+", done.stdout)
    assert found
    return found[0]


@pytest.mark.browser
def test_a_token_is_asked_for_kept_in_the_tab_and_sent_as_a_header(browser, serve, tmp_path):
    with holdfast.open(tmp_path / "log") as log:
        log.topic("orders").append(b"a secret order")
        log.topic("other").append(b"other")
    reads = create_token(tmp_path / "log", "reader", "--scope", "read", "--topic", "orders")
    appends = create_token(tmp_path / "log", "writer", "--scope", "append", "--topic", "*")
    server = serve(tmp_path / "log")
    page = browser.page()
    page.go(f"{server.url}/")
    page.sees("A token, please")
    page.fill("#token", "hft1_wrong")
    page.click("Look")
    page.sees("This token is not accepted")
    assert "holdfast token create" in page.text()
    page.fill("#token", appends)
    page.click("Look")
    page.sees("Store, disk and alarms are not shown")  # it may append, and see how far topics are
    page.sees("other")
    page.run("location.hash = '#/topics/orders'")
    page.sees("This token does not allow it")
    assert "a secret order" not in page.text()
    page.click("Forget token")
    page.sees("A token, please")
    page.fill("#token", reads)
    page.click("Look")
    page.sees("a secret order")
    page.click("Overview")
    page.sees("not for this token")
    assert "other" not in page.text()
    page.call("Page.reload")
    page.sees("not for this token")  # the tab still has it
    sent = [one for one in page.asked if reads in json.dumps(one)]
    assert sent
    assert all(reads not in one["url"] and urlsplit(one["url"]).netloc == urlsplit(server.url).netloc for one in sent)
    assert reads not in page.run("location.href + document.documentElement.outerHTML")
    assert page.run("localStorage.length + document.cookie.length") == 0
    code, said = server.stop()
    assert code == 0
    assert reads not in said


@pytest.mark.browser
def test_it_says_when_the_server_is_gone_and_goes_on_when_it_is_back(browser, serve, tmp_path):
    server = serve(tmp_path / "log")
    server.append("t", "one")
    page = browser.page()
    page.go(f"{server.url}/")
    page.sees("Ready")
    port = server.port
    server.stop()
    page.sees("No answer")
    page.sees("The console tries again by itself")
    again = serve(tmp_path / "log", "--listen", f"127.0.0.1:{port}")
    again.append("back", "two")
    page.sees("back")
    page.sees("Ready")
    assert page.dialogs == []
