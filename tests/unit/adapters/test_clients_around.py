"""What a guarded target's code reaches beside its client, as far as its names tell."""

from __future__ import annotations

import functools
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

import httpx
import httpx2
import pytest
from httpx import get as fetch

import tallystick as ts
from tallystick.adapters.clients_around import clients_around

URL = "http://model/ask"


def sends_by_the_module(case: ts.Case, http: Any) -> Any:
    return httpx.post(URL, timeout=httpx.Timeout(3))


def sends_by_the_other(case: ts.Case, http: Any) -> Any:
    with httpx2.stream("GET", URL) as reply:
        return reply.read()


def sends_by_the_standard_library(case: ts.Case, http: Any) -> Any:
    return urllib.request.urlopen(URL)


def sends_by_a_name(case: ts.Case, http: Any) -> Any:
    return urlopen(URL), fetch(URL)


def says_what_went_wrong(case: ts.Case, http: Any) -> Any:
    try:
        return http.post(URL, timeout=httpx.Timeout(3)), http.stream("GET", URL)
    except httpx.HTTPError as problem:
        return urllib.request.Request(URL), problem.request


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (sends_by_the_module, ("httpx.post",)), (sends_by_the_other, ("httpx2.stream",)),
        (sends_by_the_standard_library, ("urllib.request.urlopen",)), (sends_by_a_name, ("fetch", "urlopen")),
        (functools.partial(sends_by_the_module, http=None), ("httpx.post",)),
        (says_what_went_wrong, ()), (print, ()),
    ],
)  # fmt: skip
def test_what_is_sent_past_the_client_is_found_and_what_only_names_a_library_is_not(
    function: Callable[..., Any], names: tuple[str, ...]
) -> None:
    assert clients_around(function) == names
