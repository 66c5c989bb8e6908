"""Each example runs as a stranger would run it, and what it claims is so."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
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
