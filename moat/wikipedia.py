"""The live Wikipedia, as KnowledgeQuery may search it: over the MediaWiki action API, politely, and asked once.

Two calls a subject: `list=search` for the best pages, `prop=extracts` for the plain text of each. Paragraphs become
passages under the page's title; headings are left out. What was found (nothing, too) is kept in a cache folder outside the
pipeline's outputs, so that a run that is done again sees what it saw: delete the folder to ask anew.

The encyclopedia changes: results made with it are not reproducible elsewhere.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moat.publish import publish_text
from moat.seeds import content_id
from moat.sources.base import Passage

ENDPOINT = "https://en.wikipedia.org/w/api.php"
USER_AGENT = "MOAT/0.1 (joint alignment tuning of a planner and a grounder; research use) Python-urllib"
MAX_BYTES = 10_000_000  # of one answer


class WikipediaError(RuntimeError):
    """Wikipedia could not be asked; the message says why and what to do."""


class _Refused(Exception):  # noqa: N818 - one try's outcome
    """An answer that says no; `again`: another try may mend it."""

    def __init__(self, message: str, again: bool) -> None:
        super().__init__(message)
        self.again = again


@dataclass(frozen=True)
class Wikipedia:
    """Finds passages. `pages`: pages of a subject; `timeout`, `pause`: seconds; each further pause is twice as long."""

    cache: Path
    pages: int = 2
    endpoint: str = ENDPOINT
    timeout: float = 20.0
    attempts: int = 4
    pause: float = 1.0

    def find(self, subject: str) -> list[Passage]:
        """The paragraphs of the pages that fit the subject best, in order. Raises WikipediaError."""
        kept = self.cache / f"{content_id('wikipedia', self.endpoint, self.pages, subject)}.json"
        if kept.is_file():
            try:
                return [Passage(*pair) for pair in json.loads(kept.read_text(encoding="utf-8"))["passages"]]
            except (ValueError, LookupError, TypeError) as error:
                raise WikipediaError(f"{kept} is damaged ({error}): delete it, and Wikipedia is asked again") from error
        titles = self._titles(subject)
        passages = [one for title in titles for one in self._page(title)]
        told = {"subject": subject, "passages": [[one.title, one.text] for one in passages]}
        publish_text(kept, json.dumps(told, ensure_ascii=False, indent=1) + "\n")
        return passages

    def _titles(self, subject: str) -> list[str]:
        found = self._ask(list="search", srsearch=subject, srlimit=str(self.pages), srprop="")
        try:
            return [str(page["title"]) for page in found["query"]["search"]]
        except (LookupError, TypeError) as error:
            raise WikipediaError(f"{self.endpoint} answered a search in an unknown form: {str(found)[:200]}") from error

    def _page(self, title: str) -> list[Passage]:
        found = self._ask(prop="extracts", explaintext="1", redirects="1", titles=title)
        try:
            pages = [(str(page["title"]), str(page.get("extract", ""))) for page in found["query"]["pages"]]
        except (LookupError, TypeError, AttributeError) as error:
            raise WikipediaError(f"{self.endpoint} answered a page in an unknown form: {str(found)[:200]}") from error
        lines = [(name, line.strip()) for name, text in pages for line in text.split("\n")]
        return [Passage(name, line) for name, line in lines if line and not (line.startswith("=") and line.endswith("="))]

    def _ask(self, **parameters: str) -> dict[str, Any]:
        """One call of the API, tried again after a time-out, a server's error or an answer that is no JSON."""
        query = {"action": "query", "format": "json", "formatversion": "2", "maxlag": "5", **parameters}
        url = f"{self.endpoint}?{urllib.parse.urlencode(query)}"
        for attempt in range(self.attempts):
            try:
                return self._once(url)
            except _Refused as refused:
                said = str(refused)
                if not refused.again:
                    break
                if attempt + 1 < self.attempts:
                    time.sleep(self.pause * 2**attempt)
        raise WikipediaError(
            f"{self.endpoint} could not be asked: {said}. Check the network and run again (what was found is kept), or set "
            "tools.qa.wikipedia to false to search the local corpus"
        )

    def _once(self, url: str) -> dict[str, Any]:
        request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                raw = answer.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _Refused(f"HTTP {error.code} {error.reason}", error.code >= 500 or error.code == 429) from error
        except (OSError, http.client.HTTPException) as error:  # no connection, a time-out, a torn answer
            raise _Refused(f"{type(error).__name__}: {error}", True) from error
        if len(raw) > MAX_BYTES:
            raise _Refused(f"an answer of more than {MAX_BYTES} bytes", False)
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise _Refused(f"an answer that is no JSON: {raw[:100]!r}", True) from error
        if not isinstance(found, dict):
            raise _Refused(f"an answer that is no JSON object: {raw[:100]!r}", True)
        if "error" in found:
            code = found["error"].get("code") if isinstance(found["error"], dict) else None
            raise _Refused(f"error {str(found['error'])[:200]}", code in ("maxlag", "ratelimited", "readonly"))
        return found
