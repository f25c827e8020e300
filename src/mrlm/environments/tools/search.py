"""Search behind one small protocol: BM25 over the user's documents, a retrieval server, or a
SearXNG instance. Results are treated as untrusted data."""

import re
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.data.tasks import read_rows
from mrlm.environments.shared.rows import SharedByCopies, one_of
from mrlm.environments.tools.http import fetch_json
from mrlm.environments.tools.tool import ToolError

MAX_QUERY = 300
"""Maximum number of characters of a query."""
MAX_DOCUMENT = 1_000
"""Maximum number of characters of a document shown to the model."""
TOPK = 3
TEXTS = ("text", "contents", "content", "passage")
"""Columns that may contain a document's text."""


@dataclass(frozen=True, slots=True)
class Document:
    """A search result.

    Args:
        score: its relevance; comparable within one result only.
    """

    text: str
    title: str = ""
    score: float = 0.0


@runtime_checkable
class Search(Protocol):
    """A source of documents."""

    def search(self, query: str, k: int) -> list[Document]:
        """The `k` most relevant documents, best first; fewer if fewer match."""
        ...


class LocalIndex(SharedByCopies):
    """A BM25 index over documents in memory: with bm25s if installed (extra `search`), else with
    SQLite's FTS5. One index serves all episodes.

    Raises:
        ConfigError: no documents, or the engine is not available.
    """

    def __init__(self, documents: Iterable[Document], engine: str = "auto") -> None:
        self.documents: list[Document] = list(documents)
        if not self.documents:
            raise ConfigError("a search index needs at least one document")
        one_of("engine", engine, ("auto", "bm25s", "fts5"))
        self._lock = threading.Lock()
        texts = [f"{one.title}\n{one.text}" for one in self.documents]
        self._index: _Index = _index(texts, engine)

    def search(self, query: str, k: int) -> list[Document]:
        words = re.findall(r"\w+", query[:MAX_QUERY].lower())
        if not words:
            return []
        with self._lock:
            hits = self._index.best(words, k)
        return [replace(self.documents[i], score=score) for i, score in hits]


def documents_of(source: Any) -> list[Document]:
    """Documents from rows with `text` (or `contents`, `content`, `passage`) and optionally `title`:
    a list of them, a file or anything else `read_rows` accepts. Raises `DataError, ConfigError`:
    they cannot be read, or one has no text."""
    documents = []
    for number, row in enumerate(read_rows(source)):
        text = _text(row)
        if text is None:
            raise ConfigError(
                f"corpus, row {number}: needs one of {', '.join(TEXTS)}; it has {', '.join(row)}"
            )
        documents.append(Document(text, str(row.get("title") or "")))
    return documents


class RetrievalServer:
    """A client of a retrieval server that accepts `{"queries": [...], "topk": k, "return_scores":
    true}` by POST and answers `{"result": [[{"document": {...}, "score": s}, ...]]}`, like
    Search-R1's.

    Args:
        timeout: time limit of a query in seconds.

    Raises:
        ConfigError: the URL is invalid.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url: str = _checked(url)
        self.timeout = timeout

    def search(self, query: str, k: int) -> list[Document]:
        request = {"queries": [query], "topk": k, "return_scores": True}
        reply = fetch_json(self.url, request, self.timeout)
        results = reply.get("result", reply.get("results")) if isinstance(reply, dict) else reply
        if not isinstance(results, list) or not results or not isinstance(results[0], list):
            raise EpisodeError(f"the reply of the retrieval server {self.url} has no result list")
        return [_document(one) for one in results[0][:k]]


class SearxNG:
    """A web search through a SearXNG instance (`/search?format=json`).

    Args:
        timeout: time limit of a query in seconds.
    """

    def __init__(self, url: str, timeout: float = 10.0) -> None:
        self.url: str = _checked(url).rstrip("/")
        self.timeout = timeout

    def search(self, query: str, k: int) -> list[Document]:
        params = {"q": query, "format": "json"}
        reply = fetch_json(f"{self.url}/search", None, self.timeout, params)
        results = reply.get("results") if isinstance(reply, dict) else None
        if not isinstance(results, list):
            raise EpisodeError(
                f"the reply of {self.url} has no result list; allow format=json on the server"
            )
        return [_document(one) for one in results[:k]]


def search_tool(source: Search, k: int = TOPK) -> Any:
    """The tool `search` over a source, as a function to register."""

    def search(query: str) -> str:
        """Search for documents.

        Args:
            query: a few words
        """
        words = " ".join("".join(c if c.isprintable() else " " for c in query[:10_000]).split())
        if not words or len(query) > MAX_QUERY:
            raise ToolError(f"a query is 1 to {MAX_QUERY} characters long")
        documents = source.search(words, k)
        lines = (f"{one.title}: {one.text}" if one.title else one.text for one in documents)
        return "\n".join(line[:MAX_DOCUMENT] for line in lines) or "nothing was found"

    return search


def source_of(setting: Any) -> Search:
    """A source of a search from a user's setting: a `Search`, the URL of a retrieval server, or
    documents (a list, a file). Raises `ConfigError`: it is none of these."""
    if isinstance(setting, Search):
        return setting
    if isinstance(setting, str) and setting.startswith(("http://", "https://")):
        return RetrievalServer(setting)
    return LocalIndex(documents_of(setting))


def _text(row: Mapping[str, Any]) -> str | None:
    return next((row[name] for name in TEXTS if isinstance(row.get(name), str)), None)


def _document(item: Any) -> Document:
    """A document in one of the reply formats of servers."""
    score = item.get("score", 0.0) if isinstance(item, Mapping) else 0.0
    inner = item.get("document", item) if isinstance(item, Mapping) else item
    if isinstance(inner, Mapping):
        text, title = _text(inner) or "", str(inner.get("title") or "")
    else:
        text, title = str(inner), ""
    score = float(score) if isinstance(score, int | float) else 0.0
    return Document(text[: 4 * MAX_DOCUMENT], title[:200], score)


def _checked(url: str) -> str:
    if not re.fullmatch(r"https?://[^\s/@]+(/\S*)?", url):
        raise ConfigError(
            f"{url!r} is not a server URL; it must begin with http:// or https:// and contain no "
            "user name"
        )
    return url


# -- the two kinds of index ------------------------------------------------------------------------


class _Index(Protocol):
    def best(self, words: Sequence[str], k: int) -> list[tuple[int, float]]: ...


def _index(texts: Sequence[str], engine: str) -> _Index:
    if engine != "fts5":
        try:
            return _BM25(texts)
        except ImportError as error:
            if engine == "bm25s":
                raise ConfigError(
                    'engine="bm25s" needs the package bm25s: pip install "mrlm[search]"'
                ) from error
    return _FTS5(texts)


class _BM25:
    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s

        self._bm25 = bm25s.BM25()
        tokens = [re.findall(r"\w+", text.lower()) for text in texts]
        self._known = {word for row in tokens for word in row}
        self._bm25.index(tokens, show_progress=False)

    def best(self, words: Sequence[str], k: int) -> list[tuple[int, float]]:
        terms = [word for word in words if word in self._known]
        if not terms:
            return []
        scores = self._bm25.get_scores(terms).tolist()
        ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
        return [(i, scores[i]) for i in ranked[:k] if scores[i] > 0]


class _FTS5:
    def __init__(self, texts: Sequence[str]) -> None:
        self._base = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._base.execute("CREATE VIRTUAL TABLE d USING fts5(t, tokenize='unicode61')")
        except sqlite3.OperationalError as error:
            raise ConfigError(
                "this SQLite has no FTS5; install bm25s instead: pip install 'mrlm[search]'"
            ) from error
        self._base.executemany("INSERT INTO d(rowid, t) VALUES (?, ?)", enumerate(texts))

    def best(self, words: Sequence[str], k: int) -> list[tuple[int, float]]:
        query = " OR ".join(f'"{word}"' for word in words)
        rows = self._base.execute(
            "SELECT rowid, -bm25(d) AS s FROM d WHERE d MATCH ? ORDER BY s DESC, rowid LIMIT ?",
            (query, k),
        )
        return [(int(row), float(score)) for row, score in rows]
