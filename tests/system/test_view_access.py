"""Who may ask a server of the viewer, and for what."""

import json
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from certificates import Authority
from chromium import Browser
from commands import Mrlm
from record_maker import RunMaker
from viewed import needs_browser
from watched import LISTED, ask, clean, command, server, small_run, visit, wait_for


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_run(tmp_path)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:{port}", "localhost.", "", "10.0.0.1"],
)
def test_a_foreign_name_is_refused(small: Path, host: str) -> None:
    with server(small) as view:
        status, _, text = ask(view.url, "/", Host=host.format(port=view.port))
        assert status == 403 and "does not answer to the name" in text
        assert ask(view.url, "/", Host=f"localhost:{view.port}")[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/..%2fserver.py",
        "/static/%2e%2e/%2e%2e/server.py",
        "/../secret.txt",
        "/..%2fsecret.txt",
        "//etc/passwd",
        "/config.yaml",
        "/runs/../secret.txt",
        "/runs/%2e%2e/rows?stage=&at=0&size=6&first=0&count=1",
        "/rows?stage=..&at=0&size=6&first=0&count=1",
        "/vocabulary?stage=../run",
        "/vocabulary?stage=%2fetc",
    ],
)
def test_nothing_but_the_record_is_served(small: Path, path: str) -> None:
    with server(small) as view:
        status, _, text = ask(view.url, path)
        assert status == 404 and "secret" not in text and "import" not in text


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("at=0&size=99999999&first=0&count=1", 410),
        ("at=3&size=200&first=0&count=1", 410),
        ("at=-1&size=200&first=0&count=1", 410),
        ("at=x&size=200&first=0&count=1", 400),
        ("at=0", 400),
    ],
)
def test_rows_that_do_not_exist(small: Path, query: str, status: int) -> None:
    with server(small) as view:
        assert ask(view.url, f"/rows?stage=&{query}")[0] == status


def test_links_out_of_the_folder_are_not_followed(small: Path, tmp_path: Path) -> None:
    shown = tmp_path / "shown"
    RunMaker().write(shown / "good", steps=1, tasks=1, siblings=1)
    (shown / "evil").mkdir()
    (shown / "evil" / "config.yaml").symlink_to(small.parent / "secret.txt")
    (shown / "away").symlink_to(small)
    with server(shown) as view:
        assert [each["name"] for each in json.loads(ask(view.url, "/list")[2])] == ["good"]
        assert ask(view.url, "/runs/evil/")[0] == ask(view.url, "/runs/away/")[0] == 404


def test_answers_are_for_this_page_only(small: Path) -> None:
    with server(small) as view:
        status, headers, text = ask(view.url, "/")
        assert status == 200 and "default-src 'self'" in headers["Content-Security-Policy"]
        assert "trusted-types 'none'" in headers["Content-Security-Policy"]
        assert "http://" not in text and "https://" not in text
        assert headers["X-Content-Type-Options"] == "nosniff"
        for site in ("cross-site", "same-site"):
            assert ask(view.url, "/vocabulary?stage=", Sec_Fetch_Site=site)[0] == 403
        assert ask(view.url, "/vocabulary?stage=", Sec_Fetch_Site="same-origin")[0] == 200


def test_a_token_is_needed_where_there_is_one(small: Path) -> None:
    with command(small, MRLM_TOKEN="so secret") as (_, url):
        for path in ("/", "/?token=wrong", "/static/app.js", "/events", "/vocabulary?stage="):
            status, _, text = ask(url, path)
            assert status == 401 and "the token is missing or wrong" in text, path
        assert ask(url, "/", Authorization="Bearer so secret")[0] == 200
        status, headers, _ = ask(url, "/?token=so%20secret")
        assert status == 303 and headers["Location"] == "/"
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "so secret" not in cookie
        assert ask(url, "/", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(url, "/", Cookie=cookie.split("=")[0] + "=so secret")[0] == 401


@needs_browser
def test_a_browser_keeps_the_token_and_the_address_does_not(browser: Browser, small: Path) -> None:
    with command(small, "--token", "so secret") as (_, url):
        assert url.endswith("?token=so%20secret")
        visit(browser, url)
        wait_for(browser, f"{LISTED}.then(found => found.length)", 8)
        assert browser.js("location.search") == ""
        clean(browser, url)


def test_other_machines_need_encryption_and_a_token(run: Mrlm, small: Path) -> None:
    for options in ([], ["--token", "secret"]):
        done = run("view", small, "--host", "0.0.0.0", *options)
        assert done.code == 2 and "needs TLS and a token" in done.err


def test_an_encrypted_connection(small: Path, tmp_path: Path) -> None:
    import ssl
    import urllib.request

    (tmp_path / "ca").mkdir()
    authority = Authority(tmp_path / "ca", "authority")
    pair = authority.certify("server")
    words = ("--host", "0.0.0.0", "--token", "t", "--tls-cert", pair.cert, "--tls-key", pair.key)
    with command(small, *words) as (_, url):
        address = f"https://127.0.0.1:{urlsplit(url).port}/list"
        context = ssl.create_default_context(cafile=str(authority.pair.cert))
        context.check_hostname = False
        request = urllib.request.Request(address, headers={"Authorization": "Bearer t"})
        with urllib.request.urlopen(request, context=context) as answer:
            assert json.loads(answer.read())[0]["last"]["step"] == 1
        silent = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
        with silent, urllib.request.urlopen(request, context=context) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: folder does not exist; give a run folder"),
        (["RUN", "--port", "PORT"], "choose another with --port"),
        (["RUN", "--tls-cert", "x.pem"], "--tls-cert and --tls-key are needed together"),
        (["RUN", "--token", ""], "must be printable ASCII text, and not empty"),
    ],
)
def test_mistakes_are_explained(run: Mrlm, small: Path, arguments: list[str], message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given: dict[str, object] = {"RUN": small, "PORT": taken.getsockname()[1]}
        done = run("view", *(given.get(each, each) for each in arguments))
    assert done.code == 2 and message in done.err


def test_text_is_the_table_of_look(run: Mrlm, small: Path) -> None:
    assert run("view", small, "--text").out == run("look", small).out != ""


def test_it_ends_at_once_by_a_signal(small: Path) -> None:
    with command(small) as (process, url):
        events = socket.create_connection(("127.0.0.1", urlsplit(url).port or 0))
        events.sendall(f"GET /events HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n".encode())
        assert events.recv(20).startswith(b"HTTP/1.1 200")
        process.terminate()
        assert process.wait() == 0
        events.close()
