"""The documentation: what it links to, quotes, lists and shows is there."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import tallystick as ts
from docs import generate
from tallystick.adapters.reasons import REASONS
from tallystick.cli.commands import cli
from tallystick.ledger.crashpoints import CRASHPOINTS
from tallystick.ledger.history_effects import EFFECTS, WITHOUT_EFFECT
from tallystick.ledger.states import MACHINES, TRANSITIONS, IfUnknown, RunState, SlotState
from tallystick.ledger.verdicts import MEANINGS, NoVerdictReason
from tallystick.runner.results import _EXIT, NextMove

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))])
OUTCOMES = (DOCS / "reference" / "outcomes.md").read_text(encoding="utf-8")
ARCHITECTURE = generate.ARCHITECTURE.read_text(encoding="utf-8")
PRODUCT = ("adapters", "ledger", "runner")

# The machines that have users; the others are in the schema for what comes later.
LATER: dict[str, set[str]] = {
    "run": set(),
    "import": set(),
    "lease": set(),
    "slot": set(),
    "attempt": set(),
    "dispatch": set(),
    "reservation": set(),
    "judgment": set(),
}


def ids(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def section(title: str, text: str = OUTCOMES) -> str:
    return text.split(f"\n{title}\n", 1)[1].split("\n#", 1)[0]


def first_cells(table: str) -> list[str]:
    """The tokens in the first column; a cell may hold several."""
    cells = re.findall(r"^\| (`[^|]+`(?: \(default\))?) \|", table, re.MULTILINE)
    return [token for cell in cells for token in re.findall(r"`([^`]+)`", cell)]


# Links and words.


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def has_anchor(page: Path, anchor: str) -> bool:
    """A heading of a page, or a line of a program."""
    line = re.fullmatch(r"L(\d+)", anchor)
    if line is None:
        return anchor in anchors(page)
    return 0 < int(line[1]) <= len(page.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and not has_anchor(target, anchor)):
            lost.append(link)
    assert lost == []


def test_every_page_can_be_reached_from_the_index() -> None:
    reached, new = set[Path](), {DOCS / "README.md"}
    while new:
        reached |= new
        links = {(page, link) for page in new for link in re.findall(r"\]\(([^)\s#]+)", page.read_text("utf-8"))}
        found = {(page.parent / link).resolve() for page, link in links if link.endswith(".md")}
        new = {page for page in found if page.exists()} - reached
    made_by_a_command = {DOCS / "acceptance-record.md"}
    assert set(DOCS.rglob("*.md")) - reached - made_by_a_command == set()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_no_page_names_a_folder_of_a_machine_or_leaves_something_to_do(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?:^|[\s`\"(])/(?:work|root|tmp|home)/|T[O]DO|F[I]XME", text) == []


# What is shown.


def shown(language: str) -> list[Any]:
    return [
        pytest.param(block, id=f"{ids(page)}-{number}")
        for page in PAGES
        for number, block in enumerate(blocks(page, language), start=1)
    ]


@pytest.mark.parametrize("block", shown("toml"))
def test_work_orders_that_are_shown_can_be_read(tmp_path: Path, block: str) -> None:
    (tmp_path / "order.toml").write_text(block, encoding="utf-8")
    (tmp_path / "cases.jsonl").write_text('{"id": "a", "input": "x"}\n', encoding="utf-8")
    if "cases" in tomllib.loads(block):
        assert ts.load_work_order(tmp_path / "order.toml").variants
    else:
        assert ts.load_judge_order(tmp_path / "order.toml").judges


@pytest.mark.parametrize("block", shown("python"))
def test_python_that_is_shown_compiles(block: str) -> None:
    compile(block, "<docs>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_what_the_how_tos_show_works(tmp_path: Path) -> None:
    (target,) = blocks(DOCS / "how-to" / "write-a-target.md", "python")
    made = defined(target)
    path = str(tmp_path / "l.db")
    outcome = ts.run(made["order"], ledger=path)
    assert outcome.counts[SlotState.SELECTED] == 2
    reading, in_process = (defined(block) for block in blocks(DOCS / "how-to" / "read-the-ledger.md", "python"))
    assert reading["slots_by_state"](path) == {"selected": 2}
    assert in_process["unfinished"](path) == []
    (settling,) = blocks(DOCS / "how-to" / "settle-unknown-outcomes.md", "python")
    defined(settling)["give_up_all"](path, outcome.run_id, "nothing is unknown")
    judging, figures = (defined(block) for block in blocks(DOCS / "how-to" / "write-a-judge.md", "python"))
    ts.run(judging["order"], ledger=path)
    assert figures["rates"](path, "shortening") == {("short_enough", "default"): 1.0, ("overlap", "default"): 0.0}
    (talking,) = blocks(DOCS / "how-to" / "hold-a-conversation.md", "python")
    assert ts.run(defined(talking)["order"], ledger=path).next is ts.NextMove.NOTHING
    (supervising,) = blocks(DOCS / "how-to" / "supervise-a-run.md", "python")
    with pytest.raises(ts.TallystickError, match="given"):  # its targets were objects
        defined(supervising)["go_on_until_it_needs_somebody"](path, outcome.run_id)


def test_cases_are_chosen_and_an_adapter_is_made_as_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(DOCS / "how-to" / "choose-cases.md", "python")
    rows = "".join(f"{number},what\n" for number in range(50))
    (tmp_path / "capitals.csv").write_text(f"nr,question\n{rows}")
    made = defined(block)
    assert [case.id for case in made["few"]] == ["a", "b"]
    assert len(list(made["many"])) == 100
    assert 0 < len(list(made["table"])) < 30
    package, test = blocks(DOCS / "how-to" / "publish-an-adapter.md", "python")
    defined(package + test)["test_long_answers_fail"](tmp_path)


def defined(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(block, names)
    return names


def test_the_questions_in_sql_can_be_asked(tmp_path: Path) -> None:
    ts.run(ts.WorkOrder("sql", cases=[{"id": "a", "input": 1}], target=ts.target(echo)), ledger=tmp_path / "l.db")
    (block,) = blocks(DOCS / "how-to" / "read-the-ledger.md", "sql")
    questions = [question.strip() for question in block.split(";") if question.strip()]
    connection = sqlite3.connect(f"file:{tmp_path / 'l.db'}?mode=ro", uri=True)
    answers = [connection.execute(question).fetchall() for question in questions]
    connection.close()
    assert [len(rows) for rows in answers[:3]] == [1, 1, 0]
    assert answers[1] == [("a", "default", 1, "1", None)]
    assert [kind for _, kind, _, _ in answers[3]][:2] == ["run.planned", "run.opened"]


def command_lines() -> Iterator[tuple[str, str]]:
    """Every `tallystick …` in a page, in code spans and in blocks of a shell."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"(?<!`)`(?:[A-Z_]+=\S+ )?(tallystick [^`\n]+)`(?!`)", text)
        lines = [line.strip() for block in blocks(page, "sh") for line in block.splitlines()]
        shell = [match[1] for line in lines if (match := re.match(r"(?:[A-Z_]+=\S+ )?(tallystick .*)", line))]
        for line in [*spans, *shell]:
            yield ids(page), line


@pytest.mark.parametrize(("page", "line"), sorted(set(command_lines())))
def test_commands_that_are_shown_exist_with_their_options(page: str, line: str) -> None:
    words = shlex.split(line.partition(" # ")[0])[1:]
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if "|" in name or "…" in name:
            return  # a synopsis
        found = command.commands.get(name)
        assert found is not None, f"{page}: there is no command {name}"
        command = found
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    asked = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert asked <= known, page


# The architecture.


def test_the_generated_parts_of_the_architecture_are_up_to_date() -> None:
    assert generate.architecture() == ARCHITECTURE, "run `make docs`"


def test_every_state_has_a_meaning() -> None:
    for machine in MACHINES.values():
        assert list(generate.meanings(machine)) == [str(state) for state in machine]


def test_every_crash_point_is_listed_and_those_of_a_run_are_placed_in_the_life_of_a_call() -> None:
    titles = ("## The life of one call", "## The life of a judgment", "## Devices, leases and fences", "## Snapshots")
    life = "".join(section(title, ARCHITECTURE) for title in titles)
    elsewhere = ("ledger.", "scribe.", "checkpoint.", "query.", "reconcile.", "backup.")
    assert [name for name in CRASHPOINTS if not name.startswith(elsewhere) and f"`{name}`" not in life] == []


def change_rows() -> list[list[str]]:
    table = section("## Where a state changes, and why that is safe", ARCHITECTURE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:2] == "| "]
    return rows[1:]


def test_every_transition_that_is_used_is_in_the_table_and_no_other() -> None:
    listed = {f"{row[0]}: {move}" for row in change_rows() for move in row[1].split(", ") if "→" in move}
    legal = {
        f"{machine}: {old} → {new}"
        for machine, later in LATER.items()
        for old, news in TRANSITIONS[machine].items()
        for new in news
        if not {old, new} & later
    }
    unused = set(re.findall(r"`(\w+: \w+ → \w+)`", ARCHITECTURE))
    assert listed == legal - unused
    assert unused <= legal


def test_every_function_in_the_table_is_there() -> None:
    named = {name for row in change_rows() for name in re.findall(r"`(\w+\.\w+)`", row[2])}
    for name in sorted(named):
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"tallystick.ledger.{module}"), function)), name


def test_every_event_that_is_written_is_named_and_no_other() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ledger").glob("*.py"))
    written = set(re.findall(r'(?:tx\.events?\(\s*(?:key\.)?\w+(?:\.\w+)?, |_event\(tx, \w+, )"([\w.]+)"', sources))
    table = section("## Where a state changes, and why that is safe", ARCHITECTURE)
    named = {row[4].strip("`") for row in change_rows()} - {"that of the outcome", "none"}
    named |= set(re.findall(r"`([a-z]+\.[a-z_]+)`", table.split("Other events that change no state:")[1]))
    assert named == written


def test_the_chain_of_a_real_run_can_be_checked_with_the_program_that_is_shown(tmp_path: Path) -> None:
    (program,) = blocks(generate.ARCHITECTURE, "python")
    shown = defined(program)
    outcome = ts.run(
        ts.WorkOrder("chain", cases=[{"id": "a", "input": 1}], target=ts.target(echo)), ledger=tmp_path / "l.db"
    )
    assert shown["first_broken_event"](str(tmp_path / "l.db"), outcome.run_id) is None
    with sqlite3.connect(tmp_path / "l.db") as connection:
        connection.execute("DROP TRIGGER events_unchanged")
        connection.execute("UPDATE events SET body = '{}' WHERE event_no = 3")
    connection.close()
    assert shown["first_broken_event"](str(tmp_path / "l.db"), outcome.run_id) == 3


def echo(case: ts.Case) -> Any:
    return case.input


# The outcomes.

KINDS = (
    "### Targets over HTTP",
    "### Targets that are chat models",
    "### Targets that are programs",
    "### Targets that are Python functions",
    "### Targets that are devices",
    "### Requests of guarded targets",
)
# Tokens of this form that are no reasons: log events, crash points, file names.
NO_REASONS = {
    "late.lost",
    "late.unheard",
    "session.end_failed",
    "device.let_go_failed",
    "clock.stepped",
    "target.close_failed",
    "target.py",
    "case.id",
    "cases.columns",
    "cases.split",
    "execution.backoff",
}


def test_every_reason_of_a_target_is_listed_under_its_kind() -> None:
    listed = {token for kind in KINDS for token in first_cells(section(kind))}
    assert listed == set(REASONS)


def test_every_reason_that_the_runner_and_the_ledger_give_is_listed_and_every_listed_one_is_given() -> None:
    titles = ("### Every target", "### Conversations", "### Of slots")
    listed = {token for title in titles for token in first_cells(section(title))}
    sources = {path: path.read_text(encoding="utf-8") for name in PRODUCT for path in (ROOT / name).glob("*.py")}
    everything = "".join(sources.values())
    assert [token for token in listed if f'"{token}"' not in everything and f"'{token}'" not in everything] == []
    runner = "".join(
        text for path, text in sources.items() if path.parent.name == "runner" and path.name != "errors.py"
    )
    dotted = set(re.findall(r'(?<!place=)"([a-z]+\.[a-z_]+)"', runner)) - NO_REASONS - CRASHPOINTS.keys()
    given = {token for token in dotted if not token.endswith((".py", ".jsonl", ".toml", ".db"))}
    events = set(EFFECTS) | WITHOUT_EFFECT
    assert given - {"tallystick.targets", "tallystick.judges"} - listed - set(REASONS) - events == set()


def test_every_reason_for_no_verdict_is_listed_with_its_meaning_and_given_somewhere() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.+) \|$", section("### Why there is no verdict"), re.MULTILINE)
    assert listed == [(reason.value, meaning) for reason, meaning in MEANINGS.items()]
    sources = "".join(path.read_text("utf-8") for name in PRODUCT for path in (ROOT / name).glob("*.py"))
    assert [reason for reason in NoVerdictReason if f"NoVerdictReason.{reason.name}" not in sources] == []


@pytest.mark.parametrize(
    ("title", "values"),
    [
        ("## `if_unknown`", IfUnknown),
        ("## States of a slot", SlotState),
        ("## States of a run", RunState),
        ("## `next`", NextMove),
    ],
)
def test_every_value_is_explained_and_no_other(title: str, values: Any) -> None:
    assert sorted(first_cells(section(title))) == sorted(str(value) for value in values)


def test_the_exit_status_of_each_next_move_is_the_one_that_is_returned() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (\d+) \|$", section("## `next`"), re.MULTILINE)
    assert {name: int(status) for name, status in rows} == {move.value: int(status) for move, status in _EXIT.items()}


# The guarantees.


def test_every_test_that_a_guarantee_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / "guarantees.md").read_text(encoding="utf-8")))
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
    assert len(named) > 20


def test_every_invariant_has_its_paragraph() -> None:
    text = (DOCS / "guarantees.md").read_text(encoding="utf-8")
    assert re.findall(r"^\*\*I(\d+)\. ", text, re.MULTILINE) == [str(number) for number in range(1, 13)]


def test_every_decision_is_listed_in_their_order() -> None:
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (DOCS / "decisions" / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
