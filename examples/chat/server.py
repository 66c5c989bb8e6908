"""A stand-in for a chat model on the loopback: POST /v1/chat/completions, as OpenAI's interface has it.

It does sums ("What is 17 × 24?"). The model `large` is right more often than `small`, and both are when they are told
to show their steps, which takes more tokens. A reply ends at max_tokens with the finish reason "length". GET /counts
says how many requests came in and how many were answered whole. With --cut-every N, each Nth answer breaks off in the
middle, as networks do.
"""

import argparse
import contextlib
import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

QUESTION = re.compile(r"(\d+) ([+×]) (\d+)")


def words_of(model: str, system: str, question: str) -> list[str]:
    """The reply as tokens, each a word here."""
    found = QUESTION.search(question)
    if found is None:
        return ["I", "can", "only", "do", "sums."]
    one, sign, other = int(found[1]), found[2], int(found[3])
    if "steps" in system:
        return steps_of(one, sign, other).split()
    guess = one + other if sign == "+" else one * other
    is_hard = sign == "×" and (one > 10 if model == "small" else one * other > 500)
    return [str(guess + 10 if is_hard else guess)]


def steps_of(one: int, sign: str, other: int) -> str:
    if sign == "+":
        return f"{one} + {other} = {one + other}"
    tens, ones = other // 10 * 10, other % 10
    if not tens or not ones:
        return f"{one} × {other} = {one * other}"
    parts = f"{one} × {tens} + {one} × {ones} = {one * tens} + {one * ones}"
    return f"{one} × {other} = {parts} = {one * other}"


class Service(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, cut_every: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.cut_every = cut_every
        self.lock = threading.Lock()
        self.received = self.whole = 0

    def next_is_cut(self) -> bool:
        with self.lock:
            self.received += 1
            is_cut = bool(self.cut_every) and self.received % self.cut_every == 0
            self.whole += not is_cut
            return is_cut


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Service

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_cut = self.server.next_is_cut()
        said = {message["role"]: message["content"] for message in asked["messages"]}
        words = words_of(asked["model"], said.get("system", ""), said["user"])
        most = asked.get("max_tokens", len(words))
        told, finish = words[:most], "stop" if len(words) <= most else "length"
        tokens_in = sum(len(text.split()) for text in said.values())
        usage = {"prompt_tokens": tokens_in, "completion_tokens": len(told), "total_tokens": tokens_in + len(told)}
        pieces = [{"delta": {"content": word if at == 0 else f" {word}"}} for at, word in enumerate(told)]
        events = [{"model": asked["model"], "choices": [{"index": 0, **piece}]} for piece in pieces]
        events.append({"model": asked["model"], "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        events.append({"model": asked["model"], "choices": [], "usage": usage})
        self.stream(events[: len(told) // 2] if is_cut else events, is_cut=is_cut)

    def stream(self, events: list[dict], *, is_cut: bool) -> None:
        """The events one by one; the end of the connection is the end of the body."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for event in events:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if not is_cut:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def do_GET(self) -> None:
        with self.server.lock:
            body = json.dumps({"received": self.server.received, "whole": self.server.whole}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing: the counts tell what happened."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Do sums, over the interface of chat models, on the loopback.")
    parser.add_argument("--port", type=int, default=8767)
    parser.add_argument("--cut-every", type=int, default=0, metavar="N", help="break each Nth answer off")
    options = parser.parse_args()
    try:
        service = Service(options.port, options.cut_every)
    except OSError as error:
        sys.exit(f"cannot listen on 127.0.0.1:{options.port} ({error.strerror}); stop what uses the port")
    print(f"listening on http://127.0.0.1:{service.server_address[1]}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        service.serve_forever()


if __name__ == "__main__":
    main()
