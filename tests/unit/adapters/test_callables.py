from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters.python_target import PythonTarget, from_work_order
from tallystick.ledger.errors import TargetNotFound, WorkOrderInvalid
from tallystick.ledger.states import IfUnknown

from .makers import make_case, run_case


def write(folder: Path, text: str, name: str = "target.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def test_function_in_a_file_beside_the_work_order(tmp_path: Path) -> None:
    write(tmp_path, "LANGUAGE = 'en'", "neighbour_of_target.py")
    write(
        tmp_path, "import neighbour_of_target\n\ndef identify(case, upper=False): return neighbour_of_target.LANGUAGE"
    )
    table = {"file": "target.py", "function": "identify", "arguments": {"upper": True}, "if_unknown": "repeat"}
    made = from_work_order(table, folder=tmp_path, place="target")
    assert run_case(made, make_case()).answer == "en"
    assert made.identity()["function"] == "target.py:identify"
    assert str(tmp_path) not in str(made.identity())
    sys.path.remove(str(tmp_path))


def test_e13_changed_code_is_another_identity_unless_a_version_is_declared(tmp_path: Path) -> None:
    def identities(folder: str, text: str) -> list[Any]:
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, text)
        table = {"file": "target.py", "function": "bot"}
        made = from_work_order(table, folder=tmp_path / folder, place="target")
        declared = from_work_order({**table, "version": "7"}, folder=tmp_path / folder, place="target")
        return [made.identity(), declared.identity()]

    before = identities("before", "def bot(case): return 1")
    same = identities("same", "def bot(case): return 1")
    after = identities("after", "def bot(case): return 2")
    assert before == same
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_code_of_an_installed_module_is_told_with_its_distribution() -> None:
    identity = PythonTarget(pytest.approx).identity()
    assert str(identity["distribution"]).startswith("pytest==")
    assert str(identity["module_digest"]).startswith("sha256:")


def test_function_without_a_file_is_told_by_its_code() -> None:
    def made(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "no_such_module"}
        exec(compile(text, f"<cell {text}>", "exec"), names)
        return PythonTarget(names["bot"]).identity()["code_digest"]

    assert made("def bot(case): return 1") == made("def bot(case):  return 1")
    assert made("def bot(case): return 1") != made("def bot(case): return 2")


@pytest.mark.parametrize(
    ("table", "error", "text"),
    [
        ({"function": "bot"}, WorkOrderInvalid, 'target.function: "bot" names no module'),
        ({"function": "json:"}, WorkOrderInvalid, 'target.function: "json:" names no module'),
        (
            {"function": "no_such_module_here:bot"},
            TargetNotFound,
            "module no_such_module_here could not be imported",
        ),
        ({"function": "json:dmps"}, TargetNotFound, 'json has no "dmps". Did you mean "dumps"'),
        ({"function": "json:__name__"}, TargetNotFound, "is not a function"),
        ({"function": "bot", "file": "nothing.py"}, TargetNotFound, "there is no file nothing.py in"),
        (
            {"function": "bot", "file": "broken.py"},
            TargetNotFound,
            "could not be imported (ZeroDivisionError",
        ),
        ({"function": "bot", "file": "good.py", "argument": {}}, WorkOrderInvalid, 'Did you mean "arguments"'),
        ({"function": "bot", "file": "good.py", "arguments": {"modle": 1}}, WorkOrderInvalid, "modle"),
        ({"function": "bto", "file": "good.py"}, TargetNotFound, 'good.py has no "bto". Did you mean "bot"?'),
        ({"function": "none", "file": "good.py"}, WorkOrderInvalid, "good.py:none() cannot be called with a case"),
        (
            {"function": "bot", "file": "good.py", "guarded": "yes"},
            WorkOrderInvalid,
            "'yes' cannot stand here: it should be a valid boolean. Write true or false, without quotes",
        ),
        ({}, WorkOrderInvalid, "target.function: this key is missing. Add it: "),
    ],
    ids=str,
)
def test_function_that_is_not_there_or_unfit_is_refused_in_one_line(
    table: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    write(tmp_path, "1 / 0", "broken.py")
    write(tmp_path, "def bot(case, model='m'): pass\ndef none(): pass", "good.py")
    with pytest.raises(error) as caught:
        from_work_order(table, folder=tmp_path, place="target")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_decorated_function_keeps_its_options_and_the_table_overrides_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        """
        from tallystick.adapters.python_target import target

        @target(if_unknown="resend", version="3", key_valid_seconds=60)
        def bot(case): return 1
        """,
    )
    made = from_work_order({"file": "target.py", "function": "bot"}, folder=tmp_path, place="target")
    assert (made.if_unknown, made.version, made.key_valid_seconds) == (IfUnknown.RESEND, "3", 60)
    table = {"file": "target.py", "function": "bot", "if_unknown": "keep", "version": "4"}
    made = from_work_order(table, folder=tmp_path, place="target")
    assert (made.if_unknown, made.version) == (IfUnknown.KEEP, "4")
