"""Each example runs as a stranger would run it, and what it claims is so."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from .shown import ROOT, assert_seen, blocks_of, environment_of, run_shell

EXAMPLES = ROOT / "examples"
LANGUAGE_ID_CASES = EXAMPLES / "language-id" / "cases.jsonl"


def cases_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_language_cases_are_at_least_120_sentences_in_at_least_20_languages() -> None:
    cases = cases_of(LANGUAGE_ID_CASES)
    assert len(cases) >= 120
    assert len({case["expected"] for case in cases}) >= 20


def test_language_cases_have_unique_ids_and_unique_texts() -> None:
    cases = cases_of(LANGUAGE_ID_CASES)
    assert len({case["id"] for case in cases}) == len(cases)
    assert len({case["input"].casefold() for case in cases}) == len(cases)


def test_language_cases_are_composed_text_without_stray_space() -> None:
    for case in cases_of(LANGUAGE_ID_CASES):
        text = case["input"]
        assert text == unicodedata.normalize("NFC", text).strip(), case["id"]
        assert "  " not in text, case["id"]
        assert all(character.isprintable() for character in text), case["id"]


def test_language_case_ids_and_lengths_fit_what_they_say() -> None:
    for case in cases_of(LANGUAGE_ID_CASES):
        assert set(case) == {"id", "input", "expected", "metadata"}
        assert case["id"].split("-")[0] == case["expected"]
        assert set(case["metadata"]) == {"language", "length"}
        assert case["metadata"]["length"] in {"short", "medium", "long"}


def test_both_identifiers_know_every_language_of_the_cases() -> None:
    langid = pytest.importorskip("py3langid.langid")
    factory = pytest.importorskip("langdetect.detector_factory")
    factory.init_factory()
    expected = {case["expected"] for case in cases_of(LANGUAGE_ID_CASES)}
    assert expected <= set(langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE).labels)
    assert expected <= {code.split("-")[0] for code in factory._factory.get_lang_list()}


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of an example's folder, as one that a user has taken away."""
    return Path(shutil.copytree(EXAMPLES / request.param, tmp_path / request.param))


def a_free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def use_port(example: Path, port: int) -> None:
    order = example / "order.toml"
    order.write_text(re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{port}", order.read_text()))


@pytest.mark.parametrize("copied", ["process"], indirect=True)
def test_process_example_scores_both_calculators_and_prints_what_its_readme_shows(copied: Path) -> None:
    environment = environment_of(copied.parent)
    done = run_shell("tallystick run order.toml --ledger c.db", cwd=copied, environment=environment)
    assert done.returncode == 0, done.stderr
    assert_seen(next(one for one in blocks_of(copied / "README.md") if one.language == "text").text, done.stdout)
    told = run_shell("tallystick report calculator --json --ledger c.db", cwd=copied, environment=environment)
    scores = {one["variant"]: (one["passed"], one["judged"]) for one in json.loads(told.stdout)["scores"]}
    assert scores == {"fractions": (18, 18), "float": (12, 18)}


@pytest.mark.parametrize("copied", ["process"], indirect=True)
def test_process_example_is_reported_again_without_a_call(copied: Path) -> None:
    environment = environment_of(copied.parent)
    command = "tallystick run order.toml --ledger c.db --json"
    first, second = (run_shell(command, cwd=copied, environment=environment) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    told = json.loads(second.stdout)
    assert (told["session"]["dispatches"], told["totals"]["dispatches"]) == (0, 36)


@pytest.mark.parametrize("copied", ["http"], indirect=True)
def test_http_example_sends_again_what_was_lost_and_the_service_works_once(copied: Path) -> None:
    use_port(copied, a_free_port())
    done = run_shell([sys.executable, "run.py"], cwd=copied, environment=environment_of(copied.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_seen(next(one for one in blocks_of(copied / "README.md") if one.language == "text").text, done.stdout)
    assert "The service received 28 requests and did the work of 24." in done.stdout
    assert "22 of 24" in done.stdout


@pytest.mark.parametrize("copied", ["http"], indirect=True)
def test_http_example_says_in_one_line_that_its_port_is_taken(copied: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        use_port(copied, taken.getsockname()[1])
        done = run_shell([sys.executable, "run.py"], cwd=copied, environment=environment_of(copied.parent))
    assert done.returncode == 1
    assert done.stderr.startswith("cannot listen on 127.0.0.1:")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("copied", ["chat"], indirect=True)
def test_chat_example_asks_two_models_with_two_prompts_and_prints_what_its_readme_shows(copied: Path) -> None:
    use_port(copied, a_free_port())
    done = run_shell([sys.executable, "run.py"], cwd=copied, environment=environment_of(copied.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_seen(next(one for one in blocks_of(copied / "README.md") if one.language == "text").text, done.stdout)


@pytest.mark.parametrize("copied", ["language-id"], indirect=True)
def test_language_id_example_runs_to_its_end_without_any_kill(copied: Path) -> None:
    environment = environment_of(copied.parent)
    done = run_shell("tallystick run order.toml --ledger l.db --json", cwd=copied, environment=environment)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["population"]["selected"] == told["population"]["planned"] == told["totals"]["dispatches"]
    assert all(one["judged"] == one["planned"] and one["passed"] > 0.9 * one["judged"] for one in told["scores"])


@pytest.mark.parametrize("copied", ["language-id"], indirect=True)
def test_demo_kills_resumes_and_finds_every_claim_true(copied: Path) -> None:
    done = run_shell([sys.executable, "demo.py"], cwd=copied, environment=environment_of(copied.parent))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_seen(next(one for one in blocks_of(copied / "README.md") if one.language == "text").text, done.stdout)


@pytest.fixture
def atlas(tmp_path: Path) -> Path:
    """A copy of the example and of the device that it starts, as they lie in a checkout."""
    shutil.copytree(ROOT / "tests" / "fixtures", tmp_path / "tests" / "fixtures")
    return Path(shutil.copytree(EXAMPLES / "atlas", tmp_path / "examples" / "atlas"))


def test_atlas_example_takes_a_device_over_from_a_killed_run_which_then_goes_on(atlas: Path) -> None:
    port = a_free_port()
    for order in atlas.glob("*.toml"):
        order.write_text(order.read_text().replace("127.0.0.1:8766", f"127.0.0.1:{port}"))
    done = run_shell([sys.executable, "run.py"], cwd=atlas, environment=environment_of(atlas))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_seen(next(one for one in blocks_of(atlas / "README.md") if one.language == "text").text, done.stdout)
    log = [line for line in done.stdout.splitlines() if " | " in line and line[0].isdecimal()]
    assert [line[0] for line in log] == sorted(line[0] for line in log)
    assert sum(" submit " in line for line in log) == 4 * 3 + 2  # each turn once, though one runner was killed


def test_atlas_example_says_in_one_line_that_its_device_is_missing(atlas: Path) -> None:
    shutil.rmtree(atlas.parents[1] / "tests")
    done = run_shell([sys.executable, "run.py"], cwd=atlas, environment=environment_of(atlas))
    assert done.returncode == 1
    assert done.stderr.startswith("the simulator is not at ")
    assert len(done.stderr.splitlines()) == 1
