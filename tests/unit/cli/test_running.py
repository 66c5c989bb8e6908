"""``run`` and ``resume`` from the first call to the last word."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tallystick.ledger.records import UNITS
from tests.unit.cli.project import Project


def _rows(project: Project, table: str) -> int:
    with project.opened() as ledger, ledger.reading() as reader:
        count: int = reader.row(f"SELECT count(*) FROM {table}")[0]
    return count


def test_run_executes_everything_and_says_where_the_ledger_lies(project: Project) -> None:
    done = project.give("run", "order.toml")
    assert done.status == 0
    assert project.calls == 3
    assert "3 cases × 1 variant (default) × 1 repetition = 3 planned" in done.out
    assert "complete: every planned observation is selected" in done.out
    assert str(project.ledger_path) in done.out
    assert done.err == ""


def test_plain_output_has_no_escape_sequence(project: Project) -> None:
    assert "\x1b" not in project.give("run", "order.toml").out


def test_run_in_json_is_one_document_with_the_whole_population(project: Project) -> None:
    done = project.give("run", "order.toml", "--json")
    found = done.document
    assert done.err == ""
    assert (found["format"], found["next"], found["exit_status"]) == ("tallystick.run/1", "nothing", 0)
    assert found["ledger"] == str(project.ledger_path)
    people = found["population"]
    assert people.pop("planned") == sum(people.values()) == people["selected"] == 3
    assert found["budgets"][0]["settled"] == found["totals"]["dispatches"] == found["session"]["dispatches"] == 3
    assert [(one["passed"], one["judged"], one["planned"]) for one in found["scores"]] == [(3, 3, 3)]


def test_a_finished_run_prints_its_report_without_a_call(project: Project) -> None:
    project.give("run", "order.toml")
    again = project.give("run", "order.toml")
    assert (again.status, project.calls) == (0, 3)
    assert "counted" in again.out
    assert project.give("run", "order.toml", "--json").document["session"] == {
        "reused": 3, "dispatches": 0, "stopped": None,
        "recovery": {"dead_workers": [], "unknown": 0, "again": 0, "interrupted": 0, "parked": 0}, "passed_over": [],
    }  # fmt: skip


def test_new_pays_again(project: Project) -> None:
    project.give("run", "order.toml")
    assert project.give("run", "order.toml", "--new").status == 0
    assert project.calls == 6
    assert len(project.give("runs", "--json").document["runs"]) == 2


def test_limit_stops_and_run_goes_on(project: Project) -> None:
    done = project.give("run", "order.toml", "--limit", 1)
    assert (done.status, project.calls) == (75, 1)
    assert "tallystick resume" in done.out
    assert f"--ledger {project.ledger_path}" in done.out
    assert project.give("run", "order.toml").status == 0
    assert project.calls == 3


def test_resume_without_a_name_takes_the_newest_unfinished(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    assert project.give("resume").status == 0
    assert project.calls == 3
    nothing = project.give("resume")
    assert nothing.status == 2
    assert nothing.err.startswith("tallystick: usage.run_not_found: there is no unfinished run. List")
    ended = project.give("resume", "--amend", "dispatches=20", "--reason", "more")
    assert (ended.status, "one that has ended is named: `tallystick resume RUN" in ended.err) == (2, True)


@pytest.mark.parametrize("length", [8, 26])
def test_a_run_is_named_by_the_beginning_of_its_id(project: Project, length: int) -> None:
    run = project.give("run", "order.toml", "--json").document["run"]
    assert project.give("status", run[:length], "--json").document["run"] == run


def test_dry_run_calls_nothing_and_creates_nothing(project: Project) -> None:
    done = project.give("run", "order.toml", "--dry-run")
    assert (done.status, project.calls) == (0, 0)
    assert not project.ledger_path.exists()
    assert not (project.folder / "ledger.db.d").exists()
    assert "(will be created)" in done.out


@pytest.mark.parametrize(
    ("labelled", "told"),
    [
        (0, "no case says what is expected, and exact can give no verdict"),
        (1, "1 of 2 cases do not say what is expected: no verdict of exact there"),
        (2, ""),
    ],
)
def test_a_verdict_that_no_case_allows_is_missed_before_anything_is_paid(
    project: Project, labelled: int, told: str
) -> None:
    project.order(target='[[judges]]\nkind = "contains"\nvalue = "a"')
    project.write("cases.jsonl", *({"id": n, "input": n} | ({"expected": n} if n < labelled else {}) for n in range(2)))
    shown = project.give("run", "order.toml", "--dry-run").out
    assert told in shown
    assert bool(told) is ("no verdict" in shown)
    found = project.give("run", "order.toml", "--dry-run", "--json").document
    assert found["without_expected"] == ({"exact": 2 - labelled} if told else {})


def test_dry_run_counts_the_cost_at_worst(project: Project) -> None:
    project.order(
        budgets='dispatches = 2\nusd = { limit = "1.00", bound_per_dispatch = "0.01" }',
        execution="attempts_max = 2\ndispatches_max = 4",
    )
    found = project.give("run", "order.toml", "--dry-run", "--json").document
    calls, money = found["budgets"]
    assert (calls["least"], calls["worst"], calls["enough_for"]) == (3, 24, 2)
    assert (money["least"], money["worst"], money["enough_for"]) == ("0.03", "0.24", 3)
    plain = {"name": "default", "kind": "python", "if_unknown": "keep", "guarded": False, "client_retries": {}}
    assert found["variants"] == [{**plain, "package": None}]
    shown = project.give("run", "order.toml", "--dry-run").out
    assert "has room for 2 of 3 planned" in shown
    assert "stays unknown until you settle it" in shown


LLM = """
[[judges]]
kind = "llm"
url = "http://127.0.0.1:9/v1/chat/completions"
model = "m"
rubric = "r"
samples = 2
reasks = 1
"""


def test_dry_run_counts_the_calls_of_judges_too(project: Project) -> None:
    both = '[[budgets]]\nunit = "dispatches"\nlimit = 5\n[[budgets]]\nunit = "dispatches"\nlimit = 9\nrole = "judge"\n'
    path = project.order(execution="attempts_max = 1\ndispatches_max = 1")
    path.write_text(re.sub(r"\[budgets\][^\[]*", "", path.read_text()) + both + LLM)
    found = project.give("run", "order.toml", "--dry-run", "--json").document
    whole, judge = found["budgets"]
    assert (whole["least"], whole["worst"], whole["enough_for"], whole["planned"]) == (9, 15, 3, 3)
    assert (judge["least"], judge["worst"]) == (6, 12)
    assert "less than the plan needs with its judges' calls" in project.give("run", "order.toml", "--dry-run").out


def test_a_judge_without_its_key_is_refused_before_anything_is_paid_for(project: Project) -> None:
    path = project.order()
    path.write_text(path.read_text() + LLM + 'headers = { Authorization = { env = "NO_SUCH_KEY" } }\n')
    done = project.give("run", "order.toml")
    assert (done.status, project.calls) == (2, 0)
    assert "the environment variable NO_SUCH_KEY is not set" in done.err
    assert not project.ledger_path.exists()


def test_dry_run_says_which_run_would_go_on(project: Project) -> None:
    run = project.give("run", "order.toml", "--limit", 1, "--json").document["run"]
    found = project.give("run", "order.toml", "--dry-run", "--json").document
    assert (found["action"], found["run"], found["ledger_exists"]) == ("continue", run, True)
    project.give("resume")
    assert project.give("run", "order.toml", "--dry-run", "--json").document["action"] == "report"
    project.order(target='[[judges]]\nkind = "contains"\nvalue = "a"')
    for more in ((), ("--dry-run",)):
        done = project.give("run", "order.toml", *more)
        assert (done.status, "the judges of run" in done.err, done.out) == (4, True, "")
    assert project.calls == 3


def test_a_changed_work_order_is_refused_while_a_run_of_its_name_is_unfinished(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    before = project.bytes_of_ledger()
    project.write("cases.jsonl", {"id": "c1", "input": 99})
    for command in (("run", "order.toml"), ("run", "order.toml", "--dry-run")):
        done = project.give(*command)
        assert done.status == 4
        assert done.err.startswith("tallystick: run.identity_changed: ")
        assert "is not what it was: cases: 3 -> 1. " in done.err
        assert done.err.count("\n") == 1
    assert project.calls == 1
    assert project.bytes_of_ledger() == before


def test_changed_target_code_is_refused_with_every_difference_in_json(project: Project) -> None:
    project.give("run", "order.toml", "--limit", 1)
    project.write("target.py", "def answer(case):\n    return 7\n")
    done = project.give("resume", "--json")
    assert done.status == 4
    assert done.document["code"] == "run.identity_changed"
    assert done.document["exit_status"] == 4
    assert any("target" in line for line in done.document["differences"])
    assert "(the file with its function was changed)" in done.document["what"]


def test_failed_cases_end_with_3_and_can_be_retried_by_reason(project: Project) -> None:
    fail = project.touch("fail")
    done = project.give("run", "order.toml", "--json")
    assert done.status == done.document["exit_status"] == 3
    assert done.document["next"] == "decide"
    (reason,) = done.document["reasons"]
    assert (reason["state"], reason["count"]) == ("failed", 3)
    assert "--retry failed" in done.document["command"]
    fail.unlink()
    again = project.give("resume", "asked", "--retry", f"failed:{reason['reason']}")
    assert again.status == 0
    assert project.calls == 6


REFUSING = """
version = 1
name = "refusing"

[cases]
file = "cases.jsonl"

[target]
kind = "http"
url = "{url}"
json = {{ text = "{{{{input}}}}" }}
headers = {{ Authorization = {{ env = "THE_KEY", prefix = "Bearer " }} }}
"""


class _Refusing(BaseHTTPRequestHandler):
    """Takes no key, and says which one it was given."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = f"no such key: {self.headers['Authorization']}".encode()
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


def test_a_run_that_the_service_takes_no_key_of_ends_with_what_it_said_and_what_helps(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", "sk-secret-1234567890")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        project.write("order.toml", REFUSING.format(url=f"http://127.0.0.1:{server.server_port}/ask"))
        done = project.give("run", "order.toml")
        server.shutdown()
        thread.join()
    assert done.status == 3
    assert re.search(r"3 +failed +http\.status\.401 +401, not JSON: no such key: Bearer \*\*\*", done.out)
    assert "what helps  http.status.401: the service does not take the key: see the environment variable" in done.out
    assert "sk-secret" not in done.out + done.err
    assert "what helps" in project.give("status", "refusing").out
    (line,) = project.give("status", "refusing", "--json").document["reasons"]
    assert line["example"].endswith("no such key: Bearer ***")


def test_a_full_budget_ends_with_6_and_an_amendment_goes_on(project: Project) -> None:
    project.order(budgets="dispatches = 2")
    done = project.give("run", "order.toml", "--json")
    assert (done.status, done.document["next"], project.calls) == (6, "fund", 2)
    assert done.document["population"]["unavailable"] == 1
    assert "--amend UNIT=LIMIT" in done.document["command"]
    more = project.give("resume", "asked", "--amend", "dispatches=3", "--reason", "the last case", "--json")
    assert (more.status, project.calls) == (0, 3)
    assert more.document["budgets"][0]["limit"] == 3
    assert _rows(project, "budget_amendments") == 1


def test_an_amended_budget_is_not_taken_back_by_the_same_work_order(project: Project) -> None:
    project.order(budgets="dispatches = 2")
    project.give("run", "order.toml")
    project.give("resume", "asked", "--amend", "dispatches=5", "--reason", "more")
    assert project.give("run", "order.toml", "--json").document["budgets"][0]["limit"] == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--retry", "unknown"), "unknown outcomes are settled with"),
        (("--retry", "bogus"), "only failed, unavailable, parked, cancelled can wait again"),
        (("--amend", "dispatches=5"), "needs a --reason"),
        (("--reason", "why not"), "add --amend"),
        (("--amend", "dispatches=many", "--reason", "x"), "many is no limit of dispatches"),
        (("--amend", "usd=-1", "--reason", "x"), "-1 is no limit of usd"),
        (("--amend", "stones=5", "--reason", "x"), "write unit=limit"),
        (("--amend", "usd=5", "--reason", "x"), "no budget counts usd"),
        (("--amend", "dispatches=0", "--reason", "x"), "lies below the 1"),
    ],
)
def test_changes_that_cannot_be_made_are_told_and_nothing_is_called(
    project: Project, options: tuple[str, ...], words: str
) -> None:
    project.give("run", "order.toml", "--limit", 1)
    done = project.give("resume", "asked", *options)
    assert done.status == 2
    assert words in done.err.lower()
    assert done.err.count("\n") == 1
    assert project.calls == 1


def test_every_unit_can_be_amended_by_its_own_name(project: Project) -> None:
    names = {"nanousd": "usd", "milliseconds": "seconds"}
    limits = {"nanousd": '"1"'}
    rows = [f'{names.get(unit, unit)} = {{ limit = {limits.get(unit, 100)}, kind = "soft" }}' for unit in UNITS]
    budgets = "\n".join(rows).replace('dispatches = { limit = 100, kind = "soft" }', "dispatches = 100")
    project.order(budgets=budgets)
    project.give("run", "order.toml", "--limit", 1)
    options = [text for unit in UNITS for text in ("--amend", f"{names.get(unit, unit)}=200")]
    found = project.give("resume", *options, "--reason", "more", "--json")
    assert found.status == 0, found.err
    assert {one["unit"]: one["limit"] for one in found.document["budgets"]} == {
        "dispatches": 200, "tokens_in": 200, "tokens_out": 200, "tokens": 200, "usd": "200.00", "seconds": 200,
    }  # fmt: skip


def test_a_budget_of_one_variant_is_named_with_it(project: Project) -> None:
    text = project.order(name="two").read_text()
    table = text[text.index("[target]") : text.index("[[judges]]")]
    sides = "".join(table.replace("[target]", f"[variants.{side}.target]") for side in ("old", "new"))
    text = text.replace(table, sides).replace("[budgets]\ndispatches = 10\n", "")
    budgets = "".join(f'[[budgets]]\nvariant = "{side}"\nunit = "dispatches"\nlimit = 1\n' for side in ("old", "new"))
    project.write("order.toml", text.replace("[execution]", f"{budgets}\n[execution]"))
    assert project.give("run", "order.toml").status == 6
    unclear = project.give("resume", "two", "--amend", "dispatches=3", "--reason", "x")
    assert "several budgets count dispatches" in unclear.err
    assert "variant:old:dispatches" in unclear.err
    done = project.give("resume", "two", "--amend", "variant:old:dispatches=3", "--reason", "x", "--json")
    assert [one["limit"] for one in done.document["budgets"]] == [3, 1]
    assert (done.status, project.calls) == (6, 4)


@pytest.mark.parametrize("command", [("run", "order.toml"), ("resume",)])
def test_concurrency_beyond_what_a_work_order_may_say_is_refused(project: Project, command: tuple[str, ...]) -> None:
    done = project.give(*command, "--concurrency", 100_001)
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "--concurrency" in done.err
    assert project.calls == 0


def test_what_a_target_prints_stands_beside_the_document_and_not_in_it(project: Project) -> None:
    path = project.folder / "target.py"
    path.write_text(path.read_text() + "\nprint('loaded')\n_plain = answer\n\n\ndef answer(case):\n"
                    "    print('asked', case.id)\n    return _plain(case)\n")  # fmt: skip
    done = project.give("run", "order.toml", "--json")
    assert done.document["exit_status"] == 0
    assert "loaded" in done.err
    assert done.err.count("asked") == 3


def test_a_run_that_is_not_gone_on_with_is_named_with_what_changed_since(project: Project) -> None:
    project.give("run", "order.toml")
    path = project.folder / "target.py"
    path.write_text(path.read_text() + "\n# another word\n")
    done = project.give("run", "order.toml")
    with project.opened() as ledger, ledger.reading() as reader:
        first = reader.row("SELECT run_id FROM runs ORDER BY run_key LIMIT 1")[0]
    assert (done.status, project.calls) == (0, 6)
    assert f"run {first} of this name cannot be continued, and all is paid for anew" in " ".join(done.out.split())


def test_a_dry_run_in_json_says_which_run_is_not_gone_on_with(project: Project) -> None:
    assert project.give("run", "order.toml", "--dry-run", "--json").document["earlier"] is None
    project.give("run", "order.toml")
    assert project.give("run", "order.toml", "--dry-run", "--json").document["earlier"] is None
    path = project.folder / "target.py"
    path.write_text(path.read_text() + "\n# another word\n")
    earlier = project.give("run", "order.toml", "--dry-run", "--json").document["earlier"]
    assert earlier["run"]
    assert any("target" in change for change in earlier["changes"])


def test_dry_run_of_a_large_grid_has_a_line_for_all_variants_that_are_alike(project: Project) -> None:
    versions = [str(number) for number in range(40)]
    project.order(target=f'if_unknown = "repeat"\n\n[grid]\nversion = {versions}\n')
    shown = project.give("run", "order.toml", "--dry-run").out
    assert "3 cases × 40 variants (0, 1, 2 and 37 more) × 1 repetition = 120 planned" in shown
    (told,) = [line for line in shown.splitlines() if "which may cost again" in line]
    assert "0, 1, 2 and 37 more: python; after a lost answer the case is asked anew" in told


RETRYING = """
import tallystick as ts


class Sdk:
    def __init__(self, http_client):
        self._client = http_client
        self.max_retries = 2


client = Sdk(ts.httpx_client())


def answer(case):
    return client.max_retries
"""


def test_dry_run_says_how_the_layers_of_retries_multiply(project: Project) -> None:
    project.write("target.py", RETRYING)
    project.order(target="guarded = true\n", execution="attempts_max = 4")
    found = project.give("run", "order.toml", "--dry-run", "--json").document
    assert found["variants"][0]["client_retries"] == {"client": 2}
    shown = project.give("run", "order.toml", "--dry-run").out
    assert "client retries 2 times by itself: up to 12 sends of one request" in " ".join(shown.split())
