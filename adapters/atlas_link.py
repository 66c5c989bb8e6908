"""Speaking the Atlas protocol with one device: a message goes out, and its reply is read, compared and typed."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TypeVar

import attrs
from pydantic import ValidationError

from ..ledger.canonical import JsonValue, canonical_bytes, parse_json
from ..runner.protocols import WireProgress
from .atlas_messages import REQUESTS, Envelope, ErrorReply, QueryReply
from .http_table import Origin
from .outcomes import one_line
from .secrets import Redactor
from .wire import Reply, Wire, WireRequest

__all__ = ["Asked", "AtlasLink", "BadReply"]

E = TypeVar("E", bound=Envelope)


class BadReply(Exception):
    """What came is no reply to what was asked; ``reason`` is ``reply.garbage`` or ``reply.mismatched``."""

    def __init__(self, reason: str, message: str, *, is_other_device: bool = False) -> None:
        super().__init__(one_line(message))
        self.reason = reason
        self.is_other_device = is_other_device


@attrs.frozen
class Asked:
    """A request with a fence, as it goes out. ``payload`` stands in it byte for byte."""

    name: str
    document: dict[str, JsonValue]
    payload: bytes | None = None

    def body(self) -> bytes:
        """Its bytes; raises ValueError where it is not as the protocol says."""
        if self.payload is None:
            REQUESTS[self.name].model_validate(self.document)
            return canonical_bytes(self.document)
        REQUESTS[self.name].model_validate({**self.document, "payload": None})
        head = canonical_bytes(self.document).removesuffix(b"}")
        return head + b',"payload":' + self.payload + b"}"


class AtlasLink:
    """The connections to one device; belongs to one loop. Raises NotConnected and WireCut as `Wire.send` does."""

    def __init__(
        self,
        origin: Origin,
        base: str,
        *,
        serial: str,
        headers: Sequence[tuple[bytes, bytes]],
        redactor: Redactor,
        connect_seconds: float,
        body_bytes_max: int,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        self._base = base.rstrip("/")
        self._serial = serial
        self._redactor = redactor
        self._body_bytes_max = body_bytes_max
        host = (b"Host", origin.host_header.encode("ascii"))
        self._headers = [host, (b"User-Agent", b"tallystick"), (b"Accept", b"application/json"), *headers]
        self._wire = Wire(
            scheme=origin.scheme,
            host=origin.host,
            port=origin.port,
            connect_seconds=connect_seconds,
            keepalive_seconds=1.0,
            ssl_context=ssl_context,
        )

    async def look(self, name: str, model: type[E]) -> E:
        """``GET``: changes nothing on the device. Raises BadReply; whose reply it is, is for the caller to compare."""
        progress = WireProgress()
        status = await self._send(b"GET", name, b"", progress)
        if status != 200:
            raise BadReply("reply.garbage", _excerpt(status, bytes(progress.partial)))
        return _read(status, bytes(progress.partial), model)

    async def tell(self, asked: Asked, model: type[E], progress: WireProgress | None = None) -> E | ErrorReply:
        """``POST``: the reply to this very request, or the device's refusal of it. Raises BadReply."""
        progress = WireProgress() if progress is None else progress
        status = await self._send(b"POST", asked.name, asked.body(), progress)
        body = bytes(progress.partial)
        reply: E | ErrorReply = _read(status, body, model) if status == 200 else _read(status, body, ErrorReply)
        self._compare(asked, reply)
        return reply

    async def _send(self, method: bytes, name: str, body: bytes, progress: WireProgress) -> int:
        headers = [*self._headers]
        if method == b"POST":
            headers += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(body))]
        target = f"{self._base}/v1/{name}".encode("ascii")
        reply = Reply()
        try:
            request = WireRequest(method, target, headers, body)
            await self._wire.send(request, reply, progress=progress, body_bytes_max=self._body_bytes_max)
        finally:
            self._redactor.clean(progress.partial)
        if reply.fault is not None:
            raise BadReply("reply.garbage", f"{reply.status}, and {reply.fault}")
        return reply.status

    def _compare(self, asked: Asked, reply: Envelope) -> None:
        if reply.serial != self._serial and not (isinstance(reply, ErrorReply) and reply.error == "device.other"):
            told = f"{reply.serial} answers in place of {self._serial}"
            raise BadReply("reply.mismatched", told, is_other_device=True)
        if isinstance(reply, ErrorReply) and reply.error == "request.invalid" and reply.request_id is None:
            return  # what cannot be read has no id
        names = ("about",) if isinstance(reply, QueryReply) else ("request_id", "fence")
        if asked.name == "query" and isinstance(reply, ErrorReply):
            names = ("fence",)
        for name in names:
            found, wanted = getattr(reply, name), asked.document[name]
            if found != wanted:
                told = f"the reply to {name} {found!r} came as the reply to {wanted!r}"
                raise BadReply("reply.mismatched", told)

    async def close(self) -> None:
        """Give the connections back; idempotent."""
        await self._wire.close()


def _read(status: int, body: bytes, model: type[E]) -> E:
    try:
        return model.model_validate(parse_json(body))
    except ValidationError as fault:
        first = fault.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        told = f"{status}, and {where or 'the whole'} is not as the protocol says ({first['msg']})"
        raise BadReply("reply.garbage", told) from None
    except (ValueError, RecursionError):
        raise BadReply("reply.garbage", _excerpt(status, body)) from None


def _excerpt(status: int, body: bytes) -> str:
    shown = one_line(body[:400].decode("utf-8", "replace"), length_max=120)
    return f"{status}, not in the protocol: {shown}" if body else f"{status}, no body"
