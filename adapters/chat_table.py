"""The table of a target of kind ``chat``: a model behind an OpenAI-compatible endpoint for chat completions."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import Field, model_validator

from ..ledger.states import IfUnknown
from .secrets import SecretTable
from .tables import Table

__all__ = ["BODY_KEYS", "ChatTable"]

BODY_KEYS: Final = (
    *("temperature", "max_tokens", "max_completion_tokens", "seed"),
    *("tools", "response_format", "model", "messages", "stream", "stream_options", "n", "best_of"),
)
"""Keys of the request's body that the target's own keys make, and that ``extra`` cannot hold."""


class ChatTable(Table):
    """The table of a target of kind ``chat``."""

    url: str = Field(description="The endpoint for chat completions: `https://…/v1/chat/completions`.")
    model: str = Field(min_length=1, description="The model, as the endpoint names it.")
    system: str | None = Field(None, description="Template of the system message; none is sent if absent.")
    message: Any = Field(
        None,
        description="Template of the user's message, or of its list of parts. `{{input}}` if absent, in a conversation"
        " `{{message}}`.",
    )
    messages: Any = Field(
        None, description="Template of the whole list of messages behind `system`. Instead of `message`."
    )
    answer: Literal["text", "json", "message"] = Field(
        "text",
        description="What the answer is: the reply's text, the JSON value in that text, or the whole message with its"
        " tool calls.",
    )
    accept: list[Literal["length", "content_filter", "refusal"]] = Field(
        ["length"],
        description="Which ends beside `stop` and tool calls still give an answer, with a flag: `length` (`truncated`),"
        " `content_filter` (`filtered`), `refusal` (`refused`). The others have failed.",
    )
    stream: bool = Field(False, description="Ask for the reply as a stream of events.")
    stream_usage: bool = Field(
        True, description="Ask a stream for its usage (`stream_options`); false where the endpoint does not know that."
    )
    temperature: float | int | None = Field(None, ge=0, description="Sent as it is, like the next ones.")
    max_tokens: int | None = Field(None, ge=1, description="The most tokens of a reply: also its bound in budgets.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The same under its newer name.")
    seed: int | None = Field(None, description="Asks for the same reply each time.")
    tools: list[dict[str, Any]] | str | None = Field(
        None, description="What the model may call. As JSON text its keys keep their order."
    )
    response_format: dict[str, Any] | str | None = Field(
        None, description="The form of the reply. As JSON text its keys keep their order."
    )
    extra: dict[str, Any] = Field({}, description="Further keys of the request, sent as they are: `top_p`, `stop`, …")
    tokens_in_max: int | None = Field(
        None,
        ge=1,
        description="The most tokens that a request can be, for budgets; needed where it holds more than text. If"
        " absent, as many as its body has bytes.",
    )
    prices: str | dict[str, Any] | None = Field(
        None,
        description="What tokens cost: a price file beside the work order, or a table. Unknown if absent.",
    )
    api_key: SecretTable | None = Field(
        None, description="The key, `{ env = NAME }`; sent as `Authorization: Bearer …` where it has no `prefix`."
    )
    headers: dict[str, str | SecretTable] = Field({}, description="Text, or `{ env = NAME, prefix = … }` for a secret.")
    body_bytes_max: int = Field(
        32 * 1024 * 1024,
        ge=1,
        le=2**30,
        description="Bound of a decoded body; a stream has some 250 bytes for each token.",
    )
    connect_seconds: float = Field(10.0, gt=0, description="Bound of connecting, TLS included.")
    keepalive_seconds: float = Field(1.0, ge=0, description="How long an unused connection is used again.")
    connections: int | None = Field(None, ge=1, description="Bound of connections; the concurrency if absent.")
    idempotency_header: str = Field("Idempotency-Key", description="The header that carries the request id.")
    key_valid_seconds: float | None = Field(None, gt=0, description="How long the endpoint honours a request id.")
    if_unknown: IfUnknown = Field(
        IfUnknown.REPEAT,
        strict=False,
        description="What may follow an unknown outcome. `repeat`: it is asked anew and paid for again.",
    )
    proxy: str | None = Field(None, description="URL of an HTTP proxy; the environment's is never used.")
    ca_file: str | None = Field(None, description="Certificates to trust, relative to the work order's folder.")
    version: str | None = Field(None, description="Version of what answers; counts in the run's identity.")

    @model_validator(mode="after")
    def _is_of_one_mind(self) -> ChatTable:
        told = self.model_fields_set
        if {"message", "messages"} <= told:
            raise ValueError("message and messages both say what is asked; give one")
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens and max_completion_tokens both bound the reply; give the one that it knows")
        if taken := sorted({*BODY_KEYS} & self.extra.keys()):
            known = taken[0] in type(self).model_fields
            remedy = f"write {taken[0]} beside extra" if known else "the target makes it itself; leave it out"
            raise ValueError(f"extra.{taken[0]}: {remedy}")
        if self.if_unknown is IfUnknown.QUERY:
            raise ValueError('no chat endpoint can be asked by request id; write "repeat" or "keep"')
        if self.api_key is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("api_key and headers.Authorization both say the key; give one")
        return self

    @property
    def reply_tokens_max(self) -> int | None:
        """The most tokens that a reply can have; None where nothing bounds it."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens
