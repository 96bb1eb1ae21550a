"""The live Wikipedia: moat/wikipedia.py, against a small server that speaks the documented API, and against itself."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from moat.sources.base import Passage
from moat.wikipedia import ENDPOINT, USER_AGENT, Wikipedia, WikipediaError

EXTRACT = "The barn owl is a bird.\n\n\n== Diet ==\nIt hunts mice & voles — at night.\n=== More ===\n"
OWL = [Passage("Barn owl", "The barn owl is a bird."), Passage("Barn owl", "It hunts mice & voles — at night.")]


class Encyclopedia:
    """Answers searches and extracts as MediaWiki documents them (formatversion 2); `faults` come first, one a request."""

    def __init__(self):
        self.faults = []
        self.requests = []

    def answer(self, query):
        if query.get("list") == ["search"]:
            hits = [{"ns": 0, "title": "Barn owl"}] if "owl" in query["srsearch"][0] else []
            return {"batchcomplete": True, "query": {"search": hits}}
        page = {"pageid": 7, "ns": 0, "title": query["titles"][0], "extract": EXTRACT}
        return {"batchcomplete": True, "query": {"pages": [page]}}


@pytest.fixture
def wiki(tmp_path):
    made = Encyclopedia()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            query = parse_qs(urlsplit(self.path).query)
            made.requests.append((query, self.headers["User-Agent"]))
            status, body = made.faults.pop(0) if made.faults else (200, json.dumps(made.answer(query)).encode())
            if status == "slow":
                time.sleep(1.0)
                status = 200
            try:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # the client has gone

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.client = Wikipedia(
        tmp_path / "cache", endpoint=f"http://127.0.0.1:{server.server_port}/w/api.php", timeout=0.5, attempts=3, pause=0.0
    )
    yield made
    server.shutdown()
    server.server_close()


def test_paragraphs_of_the_best_page(wiki):
    """Headings and blank lines are left out; every request names the project and asks for JSON of form 2."""
    assert wiki.client.find("owl & barn?") == OWL
    assert wiki.requests[0][0]["srsearch"] == ["owl & barn?"]
    for query, agent in wiki.requests:
        assert agent == USER_AGENT
        assert (query["action"], query["format"], query["formatversion"]) == (["query"], ["json"], ["2"])


def test_a_subject_is_asked_once(wiki):
    """Also one of which nothing was found, and by another client."""
    for _ in range(2):
        assert wiki.client.find("owl") == OWL
        assert Wikipedia(wiki.client.cache, endpoint=wiki.client.endpoint).find("zebra") == []
    assert len(wiki.requests) == 3


LAG = json.dumps({"error": {"code": "maxlag", "info": "5 seconds lagged"}}).encode()


@pytest.mark.parametrize(
    "faults", [[(500, b"")], [(503, b"x"), (429, b"")], [(200, b"<html>")], [(200, b"[]")], [(200, LAG)], [("slow", b"{}")]]
)
def test_a_fault_is_tried_again(wiki, faults):
    wiki.faults = list(faults)
    assert wiki.client.find("owl") == OWL
    assert len(wiki.requests) == 2 + len(faults)


@pytest.mark.parametrize(
    ("faults", "words", "requests"),
    [
        ([(500, b"")] * 9, "HTTP 500", 3),
        ([("slow", b"{}")] * 9, "timed out", 3),
        ([(200, b"garbage")] * 9, "no JSON.*garbage", 3),
        ([(404, b"")], "HTTP 404", 1),
        ([(200, b'{"error": {"code": "badvalue", "info": "?"}}')], "badvalue", 1),
        ([(200, b'{"error": "?"}')], "error", 1),
        ([(200, b"{}")], "unknown form", 1),
        ([(200, b'{"query": {"search": [1]}}')], "unknown form", 1),
    ],
)
def test_what_is_not_mended_is_an_error_and_not_kept(wiki, faults, words, requests):
    """It says why; nothing goes to the cache, so the next run asks anew."""
    wiki.faults = list(faults)
    with pytest.raises(WikipediaError, match=words):
        wiki.client.find("owl")
    assert len(wiki.requests) == requests
    wiki.faults = []
    assert wiki.client.find("owl") == OWL


def test_nobody_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    client = Wikipedia(tmp_path, endpoint=f"http://127.0.0.1:{port}/", attempts=2, pause=0.0)
    with pytest.raises(WikipediaError, match=r"(?s)could not be asked.*tools\.qa\.wikipedia to false"):
        client.find("owl")


def test_a_damaged_cache_is_named(wiki):
    wiki.client.find("owl")
    (kept,) = wiki.client.cache.iterdir()
    kept.write_text("{", encoding="utf-8")
    with pytest.raises(WikipediaError, match=r"is damaged.*delete it"):
        wiki.client.find("owl")


@pytest.mark.network
def test_the_real_one(tmp_path):
    """The form that the server here imitates is the one that Wikipedia answers in."""
    try:
        socket.create_connection(("en.wikipedia.org", 443), timeout=5).close()
    except OSError as error:
        pytest.skip(f"no network: {error}")
    found = Wikipedia(tmp_path, endpoint=ENDPOINT, pages=1).find("Barn owl")
    assert {one.title for one in found}
    assert any("owl" in one.text.lower() for one in found)
