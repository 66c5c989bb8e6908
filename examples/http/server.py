"""A small service that finds dates in text: POST /dates {"text": "..."} answers {"dates": ["2024-03-05"]}.

It honours Idempotency-Key: the answer to a key is remembered, and the same key gets the same answer without the work
being done again. GET /counts says how many requests came in and how many were worked on. With --drop-every N, each Nth
piece of work is done and remembered, and then the connection is closed without an answer, as networks do.
"""

import argparse
import contextlib
import datetime as dt
import json
import re
import sqlite3
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    "January|February|March|April|May|June|July|August|September|October|November|December"
    "|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
)
PATTERNS = (
    re.compile(r"\b(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})\b"),
    re.compile(rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)? (?P<month>{MONTH})\.?,? (?P<year>\d{{4}})\b"),
    re.compile(rf"\b(?P<month>{MONTH})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})\b"),
    re.compile(r"\b(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})\b"),
)


def find_dates(text: str) -> list[str]:
    """The dates in the order in which they stand, as ISO 8601; what looks like a date and is none is left out."""
    found = []
    for pattern in PATTERNS:
        for match in pattern.finditer(text):
            with contextlib.suppress(ValueError):
                found.append((match.start(), as_date(match).isoformat()))
    return [date for _, date in sorted(found)]


def as_date(match: re.Match[str]) -> dt.date:
    month = match["month"]
    number = int(month) if month.isdigit() else MONTHS.index(month[:3].lower()) + 1
    return dt.date(int(match["year"]), number, int(match["day"]))


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, drop_every: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.drop_every = drop_every
        self.lock = threading.Lock()
        self.received = self.worked = 0
        self.memory = sqlite3.connect(":memory:", check_same_thread=False)
        self.memory.execute("CREATE TABLE answers (key TEXT PRIMARY KEY, request BLOB, answer BLOB)")

    def answer(self, key: str | None, request: bytes) -> tuple[int, bytes | None]:
        """The status and the answer; None where the work is done and the connection is to be dropped."""
        with self.lock:
            self.received += 1
            known = self.memory.execute("SELECT request, answer FROM answers WHERE key = ?", (key,)).fetchone()
            if known is not None:
                return (200, known[1]) if known[0] == request else (422, b'{"error": "this key had another request"}')
            text = json.loads(request)["text"]
            answer = json.dumps({"dates": find_dates(text), "characters": len(text)}).encode()
            self.worked += 1
            if key is not None:
                self.memory.execute("INSERT INTO answers VALUES (?, ?, ?)", (key, request, answer))
            if self.drop_every and self.worked % self.drop_every == 0:
                return 200, None
            return 200, answer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        request = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, answer = self.server.answer(self.headers.get("Idempotency-Key"), request)
        except (ValueError, KeyError, TypeError):
            status, answer = 400, b'{"error": "send a JSON object with a text"}'
        if answer is None:
            self.close_connection = True
        else:
            self.reply(status, answer)

    def do_GET(self) -> None:
        with self.server.lock:
            counts = {"received": self.server.received, "worked": self.server.worked}
        self.reply(200, json.dumps(counts).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the counts tell what happened."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Find dates in text, over HTTP on the loopback.")
    parser.add_argument("--port", type=int, default=8765)
    parser.add_argument("--drop-every", type=int, default=0, metavar="N", help="drop each Nth answer after the work")
    options = parser.parse_args()
    try:
        service = Service(options.port, options.drop_every)
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{options.port} ({error.strerror}); stop what uses the port")
    print(f"listening on http://127.0.0.1:{service.server_address[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        service.serve_forever()


if __name__ == "__main__":
    main()
