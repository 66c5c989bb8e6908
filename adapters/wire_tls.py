"""What a target over TLS trusts: the usual roots, and a file of the work order's."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..ledger.errors import TargetNotFound

__all__ = ["tls_context"]


def tls_context(ca_file: Path | None, *, place: str) -> ssl.SSLContext:
    """The context of one target; raises TargetNotFound where its file cannot be read. The environment has no say."""
    import httpx

    context = httpx.create_ssl_context(trust_env=False)
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError) as fault:
            what = f"{place}.ca_file: {ca_file.name} cannot be read ({fault})"
            raise TargetNotFound(what, "Name a PEM file, relative to the work order's folder") from None
    return context
