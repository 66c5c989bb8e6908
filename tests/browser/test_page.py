"""The page of a report in a real browser: opened, searched, filtered, unfolded; on a phone, on a desk, in the dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tallystick as ts
from tallystick.ledger.ledger import Ledger
from tests.browser.chromium import Browser
from tests.unit.renderers.made_runs import Asked, answer, document, judge, made_run, rendered, troubled_run

pytestmark = pytest.mark.browser

HOSTILE = (
    " <script>window.stolen = 1</script></script><img src=x onerror='window.stolen = 1'>"
    '<svg onload=window.stolen=1> <!-- " onmouseover="window.stolen=1" javascript:alert(1) $x^2$ '
    "{{user}} {% raw %} {# #} %s ${HOME} $(id) \x1b[2J \u202e \ud800"
)
SCREENS = [
    pytest.param({"width": 1280}, id="desk"),
    pytest.param({"width": 1280, "dark": True}, id="desk-dark"),
    pytest.param({"width": 390, "height": 844, "mobile": True}, id="phone"),
    pytest.param({"width": 390, "height": 844, "mobile": True, "dark": True}, id="phone-dark"),
]


def opened(browser: Browser, ledger: Ledger, run_id: str, folder: Path, *, anchor: str = "", **options: Any) -> None:
    path = folder / "report.html"
    path.write_text(rendered(ledger, run_id, "html", **options), encoding="utf-8")
    browser.open(path, anchor=anchor)


def listed(browser: Browser) -> list[str]:
    """What the list shows: case, variant and state of each row."""
    found: list[str] = browser.run(
        "return [...document.querySelectorAll('#list > details')].map((row) =>"
        " ['.case', '.variant', '.state'].map((part) => row.querySelector(part).textContent).join(' '))"
    )
    return found


def choose(browser: Browser, select: str, value: str) -> None:
    browser.run(
        "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
        " one.dispatchEvent(new Event('change'));",
        select, value,
    )  # fmt: skip


def searched(browser: Browser, text: str) -> None:
    """Type it, and wait for the list to have followed."""
    browser.run(
        "const one = document.getElementById('search'); one.value = arguments[0];"
        " one.dispatchEvent(new Event('input')); return new Promise((done) => setTimeout(done, 300));",
        text,
    )


@pytest.mark.parametrize("screen", SCREENS)
def test_the_page_opens_without_a_complaint_and_fits_the_screen(
    browser: Browser, ledger: Ledger, tmp_path: Path, screen: dict[str, Any]
) -> None:
    run = troubled_run(ledger, hostile=HOSTILE)
    browser.show_as(**screen)
    opened(browser, ledger, run.run_id, tmp_path, by="language")
    assert browser.complaints() == []
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.run("return document.querySelectorAll('svg.chart').length") >= 3
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(20, 23, 26)") == screen.get("dark", False)
    browser.run("document.querySelector('#list > details').open = true")
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    browser.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 10_000


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, ledger: Ledger, tmp_path: Path) -> None:
    run = troubled_run(ledger, hostile=HOSTILE)
    opened(browser, ledger, run.run_id, tmp_path, by="language")
    browser.run("for (const one of document.querySelectorAll('#list > details')) one.open = true;"
                " return new Promise((done) => setTimeout(done, 100))")  # fmt: skip
    assert browser.run("return window.stolen") is None
    assert browser.run("return document.querySelectorAll('img, #list svg, #list script').length") == 0
    text = browser.run("return document.querySelector('.inner').textContent")
    assert "<script>window.stolen = 1</script>" in text
    assert "onerror" in text
    assert browser.complaints() == []


def test_no_script_but_the_page_s_own_runs(browser: Browser, ledger: Ledger, tmp_path: Path) -> None:
    opened(browser, ledger, troubled_run(ledger).run_id, tmp_path)
    browser.run("const one = document.createElement('script'); one.textContent = 'window.stolen = 1';"
                " document.body.append(one);")  # fmt: skip
    assert browser.run("return window.stolen") is None
    assert any("Content Security Policy" in line for line in browser.complaints())


def test_the_list_has_every_planned_observation_and_can_be_filtered(
    browser: Browser, ledger: Ledger, tmp_path: Path
) -> None:
    opened(browser, ledger, troubled_run(ledger).run_id, tmp_path)
    assert len(listed(browser)) == 10
    choose(browser, "state", "failed")
    assert listed(browser) == ["c2 new failed"]
    choose(browser, "state", "")
    choose(browser, "variant", "1")
    assert len(listed(browser)) == 5
    choose(browser, "variant", "")
    choose(browser, "verdict", "none:malformed_verdict")
    assert listed(browser) == ["c2 old selected"]
    choose(browser, "verdict", "waiting")
    assert listed(browser) == ["c3 new selected"]
    browser.run("document.getElementById('clear').click()")
    assert len(listed(browser)) == 10
    assert browser.run("return document.getElementById('count').textContent") == "10 planned observations"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("broke", ["c2 new failed"]),
        ("MALFORMED", ["c2 old selected"]),
        ("c3 unknown", ["c3 old unknown"]),
        ("http.500 failed", ["c2 new failed"]),
        ("nothing like it", []),
    ],
)
def test_the_list_can_be_searched(
    browser: Browser, ledger: Ledger, tmp_path: Path, text: str, found: list[str]
) -> None:
    opened(browser, ledger, troubled_run(ledger).run_id, tmp_path)
    searched(browser, text)
    assert listed(browser) == found


def test_a_point_shows_its_observations_and_a_link_opens_one(browser: Browser, ledger: Ledger, tmp_path: Path) -> None:
    opened(browser, ledger, troubled_run(ledger).run_id, tmp_path)
    browser.run("document.querySelector('.card.unknown a').click();"
                " return new Promise((done) => setTimeout(done, 100))")  # fmt: skip
    assert listed(browser) == ["c3 old unknown"]
    opened(browser, ledger, troubled_run_of(ledger), tmp_path, anchor="#slot-2")
    assert browser.run("return document.getElementById('slot-2').open")
    assert "Attempt 1" in browser.run("return document.getElementById('slot-2').textContent")
    browser.run("document.querySelector('#slot-2 a').click(); return new Promise((done) => setTimeout(done, 100))")
    assert browser.run("return location.hash") == "#slot-1"
    assert browser.run("return document.getElementById('slot-1').open")


def troubled_run_of(ledger: Ledger) -> str:
    return troubled_run(ledger).run_id


def test_an_unfolded_case_has_its_attempts_calls_evidence_and_verdicts(
    browser: Browser, ledger: Ledger, tmp_path: Path
) -> None:
    run = troubled_run(ledger)
    opened(browser, ledger, run.run_id, tmp_path, anchor="#slot-2")
    text = browser.run("return document.getElementById('slot-2').textContent")
    for part in (
        "input",
        "expected",
        "language",
        "exact: not passed, 0.25",
        "Attempt 1",
        "observed",
        "send 1: answered",
    ):
        assert part in text, part


def test_a_long_list_is_paged(browser: Browser, ledger: Ledger, tmp_path: Path) -> None:
    run = made_run(ledger, [Asked(f"c{number:03d}") for number in range(250)])
    answer(ledger, run.run_key, 250)
    judge(ledger, run.run_key, 250, True)
    opened(browser, ledger, run.run_id, tmp_path)
    assert len(listed(browser)) == 100
    for _ in range(2):
        browser.run("document.querySelector('#pager button:last-child').click()")
    assert listed(browser)[-1] == "c249 default selected"
    assert len(listed(browser)) == 50
    opened(browser, ledger, run.run_id, tmp_path, anchor="#slot-250")
    assert browser.run("return document.getElementById('slot-250').open")


def test_the_page_says_what_the_document_says(browser: Browser, ledger: Ledger, tmp_path: Path) -> None:
    run = troubled_run(ledger)
    found = document(ledger, run.run_id)
    opened(browser, ledger, run.run_id, tmp_path)
    lead = browser.run("return document.querySelector('.lead').textContent")
    assert lead.startswith(f"{found['population']['planned']} planned")
    cards = browser.run("return [...document.querySelectorAll('.card b')].map((one) => one.textContent)")
    assert cards == [f"{one['count']} {one['what'].replace('_', ' ')}" for one in found["open_points"]]


def test_a_conversation_shows_its_turns(browser: Browser, tmp_path: Path) -> None:
    @ts.target
    def parrot(case: ts.Case, turn: ts.Turn) -> str:
        return f"you said {turn.message}"

    order = ts.WorkOrder(
        "talk", cases=[{"id": "a", "input": {"turns": ["hello", "goodbye"]}}], target=parrot,
        conversation={"turns": "$.turns"},
    )  # fmt: skip
    outcome = ts.run(order, ledger=tmp_path / "t.db")
    with ts.open(tmp_path / "t.db") as ledger:
        ledger.write_report(outcome.run_id, tmp_path / "talk.html")
    browser.open(tmp_path / "talk.html", anchor="#slot-1")
    text = browser.run("return document.querySelector('.turns').textContent")
    assert text == "turn 1helloyou said helloturn 2goodbyeyou said goodbye"
    searched(browser, "goodbye")
    assert listed(browser) == ["a default selected"]
    assert browser.complaints() == []
