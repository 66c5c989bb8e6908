"""Targets that are models behind an OpenAI-compatible endpoint for chat completions.

The wire is that of `http_target`: one dispatch is one send, and nothing is sent again by itself. What is asked is made
by `chat_request`, what is answered is read by `chat_replies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from ..ledger.canonical import JsonValue
from ..ledger.states import DispatchState
from ..runner.protocols import Dispatching, Outcome, Prepared
from .chat_replies import FILTER_CODES, ChatReplies, error_code
from .chat_request import holds_only_text, read_chat_requests
from .chat_table import ChatTable
from .http_table import HttpTable
from .http_target import HttpTarget
from .price_files import prices_of
from .pricing import bounds_by_unit, no_price, priced_outcome
from .secrets import SecretTable, secret_value
from .tables import read_table

__all__ = ["ChatTarget", "from_work_order"]

_BEARER: Final = "Bearer "
_SHARED: Final = (
    *("body_bytes_max", "connect_seconds", "keepalive_seconds", "connections", "proxy", "ca_file"),
    *("idempotency_header", "key_valid_seconds"),
)
_NOT_IDENTITY: Final = frozenset({*_SHARED, "if_unknown", "tokens_in_max", "prices", "api_key"})


def from_work_order(table: Mapping[str, Any], *, folder: Path, place: str) -> ChatTarget:
    """The target that a work order's table says; raises WorkOrderInvalid."""
    return ChatTarget(read_table(ChatTable, table, place=place), folder=folder, place=place)


class ChatTarget(HttpTarget):
    """A model. Serves one event loop at a time, between `open` and `close`."""

    kind = "chat"

    def __init__(self, table: ChatTable, *, folder: Path, place: str) -> None:
        replies = ChatReplies(table.answer, frozenset(table.accept), table.stream)
        super().__init__(_wire_table(table, place), folder=folder, place=place, replies=replies)
        asked = read_chat_requests(table, place=place)
        self._requests = self._requests.with_body(asked.body, asked.turn_needs)
        self.takes_turns, self.needs_turns = asked.turn_needs.hears, asked.turn_needs.needs
        self._chat = table
        if table.prices is not None:
            self.prices = prices_of(table.prices, folder=folder, place=f"{place}.prices")

    def identity(self) -> Mapping[str, JsonValue]:
        """The table without what only says how fast, how often and by which key, and what is at its default."""
        told = self._chat.model_dump(mode="json", exclude_defaults=True, exclude=set(_NOT_IDENTITY))
        return {"kind": self.kind, **told}

    def check(self) -> None:
        self._refuse_without_key()
        super().check()

    async def open(self) -> None:
        self._refuse_without_key()
        await super().open()

    def _refuse_without_key(self) -> None:
        if self._chat.api_key is not None:
            secret_value(self._chat.api_key, place=f"{self._place}.api_key")  # under the name that it has here

    async def dispatch(self, prepared: Prepared, dispatching: Dispatching) -> Outcome:
        outcome = await super().dispatch(prepared, dispatching)
        if outcome.state is DispatchState.FAILED and error_code(outcome.raw) in FILTER_CODES:
            return attrs.evolve(outcome, reason="chat.content_filter")
        return outcome

    def priced(self, outcome: Outcome) -> Outcome:
        return priced_outcome(outcome, self.prices, self._chat.model)

    @property
    def bounded_units(self) -> frozenset[str]:
        """The units of budgets that it can tell for requests of text."""
        return frozenset(self._bounds_for(1))

    def bounds_of(self, prepared: Prepared) -> Mapping[str, int]:
        """The most that one dispatch can use, by unit of a budget.

        In go at most as many tokens as the body has bytes: a byte-level tokenizer makes no token of nothing, and what
        JSON writes around a message is more bytes than a model's own marks around it are tokens. Out come at most as
        many as were asked for.
        """
        declared = self._chat.tokens_in_max
        if not holds_only_text(prepared.payload):
            return {} if declared is None else self._bounds_for(declared)
        size = len(prepared.payload)
        return self._bounds_for(size if declared is None else min(size, declared))

    def why_untold(self, unit: str) -> str:
        """What it lacks to tell the unit of requests of text."""
        if self._chat.reply_tokens_max is None:
            return "max_tokens is missing, and nothing else bounds a reply"
        if unit == "nanousd":
            return 'it has no prices (write `prices = "FILE"`)' if self.prices is None else no_price(self._chat.model)
        return f"it counts no {unit}"

    def _bounds_for(self, tokens_in: int) -> Mapping[str, int]:
        tokens_out = self._chat.reply_tokens_max
        return bounds_by_unit(self.prices, self._chat.model, tokens_in=tokens_in, tokens_out=tokens_out)


def _wire_table(table: ChatTable, place: str) -> HttpTable:
    headers = dict(table.headers)
    if (key := table.api_key) is not None:
        headers["Authorization"] = key if key.prefix else SecretTable(env=key.env, prefix=_BEARER, suffix=key.suffix)
    told: dict[str, Any] = {name: getattr(table, name) for name in _SHARED}
    # The body is made by `chat_request`; that there is one is all that is said of it here.
    told |= {"url": table.url.replace("{{", '{{"{{"}}'), "json": None, "headers": headers}
    return read_table(HttpTable, {**told, "if_unknown": table.if_unknown.value}, place=place)
