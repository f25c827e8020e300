"""The built-in tools under attack: a calculator, files, an interpreter, search. Whatever a model
writes, it gets a result or a line that says why not, soon, and nothing outside changes."""

import asyncio
import copy
import http.server
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.environments.tools import (
    Document,
    LocalIndex,
    Quota,
    RetrievalServer,
    SearxNG,
    ToolError,
    Workspace,
    atlas,
    calculate,
    create_default_tool_registry,
)
from mrlm.environments.tools.registry import Toolbox
from mrlm.sandbox.types import AnswerError, SandboxError, SandboxUnavailableError, SessionEnded

# -- calculator ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*(3+4)-10/4", "11.5"), ("sqrt(16)+pi*0", "4.0"), ("-7 // 2", "-4"), ("7 % 4 ** 2", "7"),
        ("2**100", "1267650600228229401496703205376"), ("2**-1", "0.5"), ("max(1, 2.5, -3)", "2.5"),
        ("round(2.718, 1)", "2.7"), ("factorial(10)", "3628800"), ("gcd(12, 18) + abs(-3)", "9"),
        ("0.1+0.2", "0.30000000000000004"), ("1_000 + 1", "1001"),
    ],
)  # fmt: skip
def test_it_computes(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "(10**300)**(10**4)", "10**10**10", "9**9**9**9", "2**(2**40)", "(-8)**(1/3)",
        "0**-1", "pow(10, 10**9)", "factorial(10**8)", "factorial(101)", "factorial(3.0)",
        "round(5, -10**9)", "round(1.5, 10**9)", "*".join(["factorial(100)"] * 20), "'a'*(10**11)",
        "[1]*(10**9)", "(" * 5000 + "1" + ")" * 5000, "(" * 200 + "1" + ")" * 200, "-" * 400 + "1",
        "+".join(["1"] * 1_000_000), "+".join(["1"] * 240),
        "().__class__.__base__.__subclasses__()", "__import__('os').system('touch hacked')",
        "(lambda:0).__globals__", "[x for x in range(10**12)]", "1e308*10-1e308*10", "1e308*10",
        "1e400", "log(0)", "sqrt(-1)", "exp(1000)", "10**308 / 1e-300", "1/0", "1%0",
        "\u0661+\uff12", "1+\x001", "1j*1j", "True + 1", "1 if 1 else 2", "1 < 2", "1 << 100",
        "2^3", "x", "abs", "abs()", "max()", "max(1)", "sqrt(1, 2)", "max(1, key=abs)",
        "max(*[1, 2])", "open('hacked', 'w')", "eval('1')", "(x := 5)", "f'{1}'", "1; 2", "\ud800",
        "9" * 500,
    ],
)  # fmt: skip
def test_it_refuses_within_milliseconds(expression: str) -> None:
    started = time.process_time()
    with pytest.raises(ToolError) as caught:
        calculate(expression)
    assert time.process_time() - started < 0.1
    assert 0 < len(str(caught.value)) < 300
    assert not os.path.exists("hacked")


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    made = Workspace(files={"a/b.txt": "hello"})
    yield made
    made.close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    outside = tmp_path / "secret.txt"
    outside.write_text("secret")
    return outside


def test_files_are_written_read_listed_and_deleted(workspace: Workspace) -> None:
    assert workspace.read_file("a/b.txt") == "hello"
    assert workspace.write_file("./a/b.txt", "gr\u00fc\u00df") == "wrote 6 bytes"
    workspace.write_file("c", "")
    assert workspace.read_file("a/b.txt") == "gr\u00fc\u00df"
    assert workspace.list_files() == "a/b.txt 6\nc 0"
    assert workspace.delete_file("c") == "deleted" and workspace.files == {
        "a/b.txt": "gr\u00fc\u00df".encode()
    }


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "../x", "a/../../x", "a/./b.txt", "/etc/passwd", "//etc/passwd", "a//b.txt",
        "a/", "a", "a/b.txt/c", "none", "none/none", "~/x", "a\\b", "a\x00b", "a\nb", "\ud800",
        "x" * 5000, "y" * 150, "/".join("abcdefghij"), ".mrlm-new", ".mrlm-new/x",
        ".MRLM-removed-0/x",
    ],
)  # fmt: skip
def test_paths_that_lead_nowhere_good_are_refused(workspace: Workspace, path: str) -> None:
    for call in (workspace.read_file, workspace.delete_file):
        with pytest.raises(ToolError) as caught:
            call(path)
        assert len(str(caught.value)) < 200
    if path not in ("none", "none/none", "~/x"):  # these can be made
        with pytest.raises(ToolError):
            workspace.write_file(path, "x")


def test_a_neighbour_whose_name_begins_alike_is_outside(workspace: Workspace) -> None:
    name = os.path.basename(workspace.folder)
    with pytest.raises(ToolError):
        workspace.write_file(f"../{name}_evil/x", "x")
    assert not os.path.exists(workspace.folder + "_evil")


def test_links_and_odd_files_are_not_touched(workspace: Workspace, secret: Path) -> None:
    inside = Path(workspace.folder)
    (inside / "link").symlink_to(secret)
    (inside / "dir").symlink_to(secret.parent)
    (inside / "zero").symlink_to("/dev/zero")
    (inside / "dangling").symlink_to(secret.parent / "new")
    (inside / "loop").symlink_to("loop")
    os.link(secret, inside / "hard")
    os.mkfifo(inside / "fifo")
    odd = ("link", "dir", "dir/secret.txt", "zero", "dangling", "loop", "hard", "fifo")
    for path in odd:
        for call in (workspace.read_file, lambda p: workspace.write_file(p, "x")):
            with pytest.raises(ToolError):
                call(path)
    assert secret.read_text() == "secret" and not (secret.parent / "new").exists()
    assert "secret" not in workspace.list_files() and workspace.files == {"a/b.txt": b"hello"}


def test_quotas_hold(workspace: Workspace) -> None:
    small = Workspace(quota=Quota(total=100, file=60, entries=5))
    with pytest.raises(ToolError, match="at most 60 bytes"):
        small.write_file("big", "A" * (64 << 20))
    with pytest.raises(ToolError, match="at most 60 bytes"):
        small.write_file("wide", "\u00e9" * 31)
    small.write_file("one", "x" * 60)
    with pytest.raises(ToolError, match="at most 100"):
        small.write_file("two", "x" * 41)
    small.write_file("two", "x" * 40)
    small.write_file("one", "y" * 60)  # replacing frees what was there
    with pytest.raises(ToolError):
        small.write_file("a/b/c/d/e", "")
    for i in range(50):
        try:
            small.write_file(f"d{i}/f", "")
        except ToolError:
            break
    assert sum(1 for _ in Path(small.folder).rglob("*")) <= 5
    small.close()
    sparse = Path(workspace.folder) / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ToolError, match="larger than"):
        workspace.read_file("sparse")
    (Path(workspace.folder) / "binary").write_bytes(b"\xff\xfe\x00\x80")
    assert workspace.read_file("binary") == "\ufffd\ufffd\x00\ufffd"
    with pytest.raises(ToolError, match="valid text"):
        workspace.write_file("s", "\ud800")


def test_cleaning_up_copes_with_depth_and_permissions(secret: Path) -> None:
    workspace = Workspace(files={"a/b": "x"})
    root = workspace.folder
    here = os.open(root, os.O_RDONLY)
    for level in range(2200):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        if level % 500 == 0:
            os.symlink(secret.parent, "link", dir_fd=deeper)
            os.mkfifo("fifo", dir_fd=deeper)
        if level % 700 == 0:
            os.mkdir("locked", 0o000, dir_fd=deeper)
        os.close(here)
        here = deeper
    os.close(here)
    os.mkdir(f"{root}/shut")
    Path(f"{root}/shut/file").write_text("x")
    os.chmod(f"{root}/shut", 0o000)
    os.makedirs(f"{root}/.mrlm-removed-0/x")  # names that removing uses itself
    os.makedirs(f"{root}/z/.mrlm-removed-3/x")
    Path(f"{root}/.mrlm-removed-2").write_text("x")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    workspace.close()
    workspace.close()
    assert not os.path.exists(root) and secret.read_text() == "secret"
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before  # others may be closed meanwhile


def test_a_folder_of_the_users_own_stays_and_a_copy_is_apart(tmp_path: Path) -> None:
    own = Workspace(tmp_path, {"x": "1"})
    other = copy.deepcopy(own)
    other.write_file("x", "2")
    own.close()
    assert (tmp_path / "x").read_text() == "1" and other.read_file("x") == "2"
    assert stat.S_IMODE(os.stat(other.folder).st_mode) == 0o700
    folder = other.folder
    del other
    assert not os.path.exists(folder)  # also where nobody closed it


# -- Python ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python() -> Iterator[Any]:
    """`python(*codes)`: what an interpreter says to each, one after the other."""
    registry = create_default_tool_registry(["python"], timeout=3.0)
    try:
        registry.open()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))

    def run(*codes: str) -> list[str]:
        async def each() -> list[str]:
            box = registry.open()
            said = []
            for code in codes:
                try:
                    said.append(await box.call(registry["python"], {"code": code}))
                except ToolError as error:
                    said.append(f"error: {error}")
            await box.close()
            return said

        return asyncio.run(each())

    yield run


def test_an_interpreter_remembers_within_an_episode_only(python: Any) -> None:
    assert python("x = 6", "x * 7", "print('a'); print(x)") == ["no output", "42", "a\n6"]
    (said,) = python("x")
    assert said.startswith("error: line 1: NameError")


def test_errors_name_class_and_line(python: Any) -> None:
    said = python("y = 1\nprint('so far')\n1/0", "def f(:", "import sys; sys.exit(3)", "y")
    assert said[0] == "error: so far\nline 3: ZeroDivisionError: division by zero"
    assert said[1].startswith("error: line 1: SyntaxError")
    assert said[2] == "error: line 1: SystemExit: 3" and said[3] == "1"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("while True: pass", "longer than 3 s"),
        ("import time\ntime.sleep(99)", "longer than 3 s"),
        ("import os\nos._exit(0)", "the interpreter ended"),
        ("import os, signal\nos.kill(os.getpid(), 9)", "the interpreter ended"),
        ("import sys\nsys.modules['__main__'].answer = 1", "no output"),
    ],
)
def test_what_kills_an_interpreter_is_said_and_a_fresh_one_follows(
    python: Any, code: str, says: str
) -> None:
    said = python("x = 1", code, "2 + 2", "2 + 2", "x")
    assert says in said[1] and "4" in said[2:4]
    if said[1].startswith("error"):
        assert "fresh interpreter" in said[1] and "NameError" in said[4]


def test_output_is_capped_and_the_host_is_out_of_reach(
    python: Any, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MRLM_TEST_SECRET", "hidden-17")
    said = python(
        "print('A' * 10**7)",
        f"open({str(secret)!r}).read()",
        "import os; print(dict(os.environ))",
        f"import os; os.remove({str(secret)!r})",
        "x" * 30_000,
        "'\ud800'",
    )
    assert len(said[0]) < 5_000 and "more" in said[0]
    assert said[1].startswith("error") and "hidden-17" not in said[2]
    assert said[3].startswith("error") and secret.read_text() == "secret"
    assert said[4].startswith("error") and said[5].startswith("error")


class Breaking:
    """A sandbox that fails in the way that is asked for."""

    name = "breaking"

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.started = self.closed = 0

    async def session(self, program: str, files: Any = None, limits: Any = None) -> "Breaking":
        self.started += 1
        return self

    async def ask(self, request: Any, wall: float) -> Any:
        if isinstance(self.error, ValueError):
            return json.loads(str(self.error))
        raise self.error

    async def close(self) -> None:
        self.closed += 1


def box_of(error: Exception) -> tuple[Breaking, Toolbox]:
    sandbox = Breaking(error)
    return sandbox, create_default_tool_registry(["python"], sandbox=sandbox).open()  # type: ignore[arg-type]


def test_a_sandbox_that_fails_is_no_answer() -> None:
    _, box = box_of(SandboxError("no space"))
    with pytest.raises(SandboxError):
        asyncio.run(box.call(box.registry["python"], {"code": "1"}))


@pytest.mark.parametrize("forged", ["1", "[]", "{}", '{"output": 3, "error": ""}', '{"error": ""}'])
def test_a_forged_reply_is_an_error_and_no_crash(forged: str) -> None:
    _, box = box_of(ValueError(forged))
    with pytest.raises(ToolError, match="no answer"):
        asyncio.run(box.call(box.registry["python"], {"code": "1"}))


@pytest.mark.parametrize("error", [AnswerError("no"), SessionEnded("timeout", "late")])
def test_an_ended_session_is_started_again(error: Exception) -> None:
    sandbox, box = box_of(error)

    async def twice() -> None:
        for _ in range(2):
            with pytest.raises(ToolError, match="fresh interpreter"):
                await box.call(box.registry["python"], {"code": "1"})

    asyncio.run(twice())
    assert sandbox.started == 2


def test_an_interpreter_is_lazy_and_is_ended() -> None:
    sandbox, box = box_of(ValueError('{"output": "", "error": ""}'))
    box.close_now()
    assert sandbox.started == 0

    async def played() -> None:
        await box.call(box.registry["python"], {"code": "1"})
        with pytest.raises(TypeError, match="cannot be copied"):
            copy.deepcopy(box)
        box.close_now()  # as a world is closed while the loop runs
        await asyncio.sleep(0.01)

    asyncio.run(played())
    assert (sandbox.started, sandbox.closed) == (1, 1)


# -- search ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["bm25s", "fts5"])
def test_search_finds_every_entry_of_the_atlas(engine: str) -> None:
    if engine == "bm25s":
        pytest.importorskip("bm25s")
    index = LocalIndex(atlas.documents(), engine)
    assert len(index.documents) >= 60
    for name, entry in atlas.entries().items():
        assert index.search(name, 3)[0].text == entry.text
        for question in entry.numbers:
            assert entry.text in [found.text for found in index.search(question, 3)]
    assert index.search("river long", 2)[0].score > 0 and len(index.search("river", 2)) == 2
    for query in ("", "zzzz", "!!!", '"', "NEAR(", "* OR x*", "a" * 10**6, "\x00", "\ud800"):
        assert index.search(query, 3) == [] or engine


def test_a_corpus_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"title": "Nile", "contents": "A river."}\n{"text": "A hill."}\n')
    registry = create_default_tool_registry(["search"], search=str(file))
    box = registry.open()
    assert asyncio.run(box.call(registry["search"], {"query": "nile"})) == "Nile: A river."
    assert asyncio.run(box.call(registry["search"], {"query": "moon"})) == "nothing was found"
    for query in ("", "  ", "x" * 301):
        with pytest.raises(ToolError, match="a query is"):
            asyncio.run(box.call(registry["search"], {"query": query}))
    with pytest.raises(ConfigError, match="corpus, row 0"):
        create_default_tool_registry(["search"], search=[{"body": "x"}])
    for wrong in ("ftp://x", "http://user:pass@host/", "http://"):
        with pytest.raises(ConfigError):
            RetrievalServer(wrong)
    with pytest.raises(ConfigError, match="at least one document"):
        LocalIndex([])


class Server(http.server.BaseHTTPRequestHandler):
    """Answers as its path says."""

    asked: list[Any] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        Server.asked.append(json.loads(body))
        self.answer()

    def do_GET(self) -> None:
        Server.asked.append(self.path)
        self.answer()

    def answer(self) -> None:
        item = {"document": {"contents": "A river.", "title": "Nile"}, "score": 2}
        replies: dict[str, bytes] = {
            "/good": json.dumps({"result": [[item, "text only", {"text": 3}]]}).encode(),
            "/search": json.dumps({"results": [{"title": "T", "content": "live"}]}).encode(),
            "/odd": b'{"result": 3}',
            "/broken": b"{",
            "/deep": b"[" * 200_000,
            "/huge": b'"' + b"x" * (5 << 20) + b'"',
        }
        path = self.path.partition("?")[0]
        self.send_response({"/moved": 302, "/fails": 500}.get(path, 200))
        if path == "/moved":
            self.send_header("Location", "/good")
        self.end_headers()
        try:
            for _ in range(1200 if path == "/slow" else 0):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
            self.wfile.write(replies.get(path, b"{}"))
        except OSError:
            return  # the client has had enough

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_address[1]}"
    made.shutdown()
    made.server_close()


def test_a_retrieval_server_is_asked(server: str) -> None:
    found = RetrievalServer(f"{server}/good").search("nile", 2)
    assert found == [Document("A river.", "Nile", 2.0), Document("text only")]
    assert Server.asked[-1] == {"queries": ["nile"], "topk": 2, "return_scores": True}
    assert SearxNG(server).search("a b&c", 3) == [Document("live", "T")]
    assert Server.asked[-1] == "/search?q=a+b%26c&format=json"


@pytest.mark.parametrize("path", ["moved", "fails", "odd", "broken", "deep", "huge", "slow"])
def test_a_server_that_fails_ends_the_episode_and_never_pays(server: str, path: str) -> None:
    registry = create_default_tool_registry(
        ["search"], search=RetrievalServer(f"{server}/{path}", timeout=0.5)
    )
    asked = len(Server.asked)
    with pytest.raises(EpisodeError, match=server):
        asyncio.run(registry.open().call(registry["search"], {"query": "x"}))
    assert len(Server.asked) == asked + 1  # no redirect was followed
