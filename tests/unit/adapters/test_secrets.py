from __future__ import annotations

import pytest

from tallystick.adapters.secrets import Redactor, SecretTable, environment_redactor, header_value, secret_value
from tallystick.ledger.errors import SecretMissing
from tallystick.ledger.states import DispatchState
from tallystick.runner.protocols import Outcome, Usage


def test_value_comes_from_the_environment_with_what_stands_around_it() -> None:
    secret = SecretTable(env="KEY", prefix="Bearer ", suffix="!")
    assert secret_value(secret, place="headers.A", environment={"KEY": "v"}) == "Bearer v!"


@pytest.mark.parametrize("environment", [{}, {"KEY": ""}])
def test_variable_that_is_not_set_or_empty_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(SecretMissing, match=r"headers\.A: the environment variable KEY is not set") as caught:
        secret_value(SecretTable(env="KEY"), place="headers.A", environment=environment)
    assert caught.value.variable == "KEY"


def test_key_with_a_line_break_is_no_header_and_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "sk-\u00e9-abc\ndef")
    with pytest.raises(SecretMissing, match=r"headers\.A: the environment variable KEY holds a line break") as caught:
        header_value(SecretTable(env="KEY"), place="headers.A")
    assert "abc" not in str(caught.value)
    monkeypatch.setenv("KEY", "sk-abc\n")  # as a file of one line gives it
    assert header_value(SecretTable(env="KEY", prefix="Bearer "), place="headers.A") == b"Bearer sk-abc"


def test_secret_that_came_with_white_space_is_taken_out_as_it_was_sent() -> None:
    assert Redactor.of([" sk-abc\n"]).text("wrong key sk-abc.") == "wrong key ***."


def test_secret_is_taken_out_in_its_own_form_and_in_that_of_json() -> None:
    redactor = Redactor.of(['p"w\\é-long', "pw-long"])
    assert redactor.text('a p"w\\é-long b pw-long c') == "a *** b *** c"
    assert redactor.text('{"k": "p\\"w\\\\\\u00e9-long"}') == '{"k": "***"}'
    assert redactor.bytes('x p"w\\é-long'.encode()) == b"x ***"
    data = bytearray(b"one pw-long, two pw-long")
    redactor.clean(data)
    assert data == b"one ***, two ***"


def test_longer_secret_is_taken_out_before_one_that_it_contains() -> None:
    assert Redactor.of(["abcd", "abcdefgh"]).text("abcdefgh abcd") == "*** ***"


def test_short_values_are_left_alone() -> None:
    data = b"a1b"
    assert Redactor.of(["a", "1", ""]).bytes(data) is data


def test_environment_redactor_knows_variables_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_API_KEY", "GH_TOKEN", "DB_PASSWORD", "CLIENT_SECRET"):
        monkeypatch.setenv(name, f"value-of-{name}")
    monkeypatch.setenv("EDITOR", "value-of-EDITOR")
    text = environment_redactor().text("value-of-MY_API_KEY value-of-GH_TOKEN value-of-DB_PASSWORD value-of-EDITOR")
    assert text == "*** *** *** value-of-EDITOR"


def test_secret_is_taken_out_of_everything_that_is_kept_of_an_outcome() -> None:
    usage = Usage(raw={"a": "pw-long"}, problems=("tokens_in is 'pw-long'",))
    outcome = Redactor.of(["pw-long"]).outcome(
        Outcome(
            DispatchState.ANSWERED, "", "got pw-long", answer=[{"pw-long": "x pw-long"}], raw=b"[{pw-long}]",
            evidence={"context": ["pw-long"]}, usage=usage,
        )
    )  # fmt: skip
    assert "pw-long" not in repr(outcome)
    assert outcome.answer == [{"***": "x ***"}]
    assert outcome.raw == b"[{***}]"


def test_bytes_that_hold_a_secret_in_escapes_are_not_kept() -> None:
    raw = "".join(f"\\u{ord(letter):04x}" for letter in "pw-long").encode()
    outcome = Redactor.of(["pw-long"]).outcome(Outcome(DispatchState.ANSWERED, answer="pw-long", raw=raw))
    assert (outcome.answer, outcome.raw, outcome.raw_cut) == ("***", None, True)


def test_beginning_of_a_secret_at_which_bytes_break_off_is_taken_out_too() -> None:
    redactor = Redactor.of(["pw-long"])
    assert redactor.without_tail(b"a pw-long b pw-lo") == b"a *** b ***"
    assert redactor.without_tail(b"a pw-") == b"a pw-"
    assert redactor.without_tail(b"a pw-l") == b"a ***"
