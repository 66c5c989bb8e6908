from __future__ import annotations

from tallystick.runner.words import nearest


def test_the_nearest_word_is_offered() -> None:
    assert nearest("concurency", ["deadline_seconds", "concurrency"]) == 'Did you mean "concurrency"?'


def test_all_words_are_offered_in_order_where_none_is_near() -> None:
    assert nearest("x", ["b", "a"]) == "Known here: a, b."
