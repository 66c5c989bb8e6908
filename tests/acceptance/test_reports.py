"""E11: reports, comparisons, gates and exports are the same twice, with every provider off, and change nothing."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from .harness import Site
from .invariants import rows
from .orders import case, execution, http_target

FORMS: Final = ("json", "html", "md", "csv", "junit")


def two_variants(site: Site, **options: Any) -> dict[str, Any]:
    """Eight cases on two variants of a service: answered well, wrongly, with an error, and, once, not at all."""
    plain = [case(f"good-{number}") for number in range(3)]
    cases = [
        *plain,
        case("wrong", "something else"),
        case("broken", status=500),
        case("odd", text="=1+1 <b>\x1b[31m"),
        case("held", wait="gate"),
        case("last"),
    ]
    for number, one in enumerate(cases):
        one["metadata"] = {"half": "a" if number < 4 else "b"}
    target = http_target(site.service)
    return {
        "version": 1,
        "name": "acceptance",
        "cases": {"items": cases},
        "variants": {"old": {"target": target}, "new": {"target": target}},
        "judges": [{"kind": "exact"}],
        "budgets": {"dispatches": 40},
        "gates": {"min_score": 0.9, "max_regression": 0.1, "max_unknown": 0, "min_coverage": 0.5},
        "execution": execution(**options),
    }


def everything(site: Site) -> str:
    """A digest of every row of every table: what the ledger says, whatever its file looks like."""
    tables = [name for (name,) in rows(site.ledger, "SELECT name FROM sqlite_master WHERE type = 'table'")]
    said = hashlib.sha256()
    for table in sorted(tables):
        said.update(repr((table, sorted(map(repr, rows(site.ledger, f'SELECT * FROM "{table}"'))))).encode())
    return said.hexdigest()


def printed(site: Site, *command: object, status: int = 0) -> str:
    """What a command prints in a process of its own."""
    made = site.start(*command)
    assert made.ended() == status, made.err
    return made.out


def written(site: Site, form: str, *options: object) -> bytes:
    """What ``report`` writes into a file."""
    path = site.folder / f"written.{form}"
    path.unlink(missing_ok=True)
    assert site.start("report", "--format", form, "-o", path, *options).ended() == 0
    return path.read_bytes()


def looked_at(site: Site) -> list[str | bytes]:
    """Every form of the report, a slice of it, groups, a comparison and the gates, each from a process of its own."""
    gated = site.start("gate", "--json")
    assert gated.ended() in (1, 3), gated.err
    return [
        *(written(site, form) for form in FORMS),
        written(site, "json", "--slice", "half=b"),
        written(site, "md", "--by", "half"),
        printed(site, "report"),
        printed(site, "compare", "acceptance:old", "acceptance:new", "--by", "half", "--json"),
        gated.out,
        exported(site).read_bytes(),
    ]


def exported(site: Site) -> Path:
    """A snapshot of the run."""
    path = site.folder / "run.snapshot"
    assert site.start("export", "acceptance", "-o", path, "--force").ended() == 0
    return path


def killed_while_asking(site: Site) -> None:
    """The run's process is killed while one call waits in the service, and the write-ahead log is left as it is."""
    site.order(two_variants(site))
    running = site.run()
    site.wait_for("gate")
    running.dies()
    assert Path(f"{site.ledger}-wal").stat().st_size > 0


def test_e11_everything_is_the_same_twice_with_every_provider_off(site: Site) -> None:
    killed_while_asking(site)
    site.service.go("gate")
    assert site.resume().ended() == 3
    asked, said = site.service.received(), site.service.log.read_bytes()
    site.service.close()  # from here on nobody answers
    before = everything(site)
    first = looked_at(site)
    assert looked_at(site) == first
    assert everything(site) == before
    assert site.service.log.read_bytes() == said
    assert asked == said.count(b"\n")


def test_e11_missing_and_failed_ones_stay_in_every_view(site: Site) -> None:
    killed_while_asking(site)
    site.service.go("gate")
    assert site.resume().ended() == 3
    whole, sliced = (json.loads(written(site, "json", *options)) for options in ((), ("--slice", "half=b")))
    for found, planned in ((whole, 16), (sliced, 8)):
        people = found["population"]
        assert people["planned"] == planned == sum(count for name, count in people.items() if name != "planned")
        assert (people["failed"], people["unknown"]) == (2, 1)
        assert len(found["slots"]) == planned
        assert sum(one["population"]["planned"] for one in found["by_variant"]) == planned
        for score in found["scores"]:
            missing = sum(score["no_verdict"].values()) + sum(score["without_observation"].values())
            assert score["judged"] + missing + score["waiting"] + score["outside"] == score["planned"]
    states = [row["state"] for row in csv.DictReader(written(site, "csv").decode().splitlines())]
    assert (len(states), states.count("failed"), states.count("unknown")) == (16, 2, 1)
    assert b'tests="16" failures="2" errors="3"' in written(site, "junit")
    line = next(one for one in json.loads(printed(site, "compare", "acceptance", "--json"))["lines"] if one["judge"])
    counted = sum(line[key] for key in ("pairs", "baseline_only", "candidate_only", "neither", "changed"))
    assert (counted, line["pairs"], line["verdict"]) == (8, 6, "inconclusive")
    gates = json.loads(printed(site, "gate", "--json", status=1))
    assert {one["gate"]: one["verdict"] for one in gates["lines"] if one["gate"] == "max_unknown"} == {
        "max_unknown": "failed" if whole["by_variant"][1]["population"]["unknown"] else "passed"
    }


def test_e11_a_report_after_a_kill_is_the_same_after_the_resume(site: Site) -> None:
    killed_while_asking(site)
    before = everything(site)
    first = looked_at(site)
    assert everything(site) == before
    event = json.loads(first[0])["event"]
    site.service.go("gate")
    assert site.resume().ended() == 3
    assert json.loads(written(site, "json"))["event"] > event
    assert json.loads(written(site, "json"))["sessions"][0]["died"] is True
    assert [written(site, form, "--at", event) for form in FORMS] == first[: len(FORMS)]


@pytest.mark.parametrize(
    "point", ["dispatch.intent.committed@6", "dispatch.outcome.committed@4", "judgment.committed@3"]
)
def test_e11_a_report_of_a_live_run_is_the_same_at_its_event(site: Site, point: str) -> None:
    site.order(two_variants(site))
    running = site.run(pause_at=point)
    running.wait_until_there()
    before = everything(site)
    first = [written(site, form) for form in FORMS]
    assert [written(site, form) for form in FORMS] == first
    assert everything(site) == before
    event = json.loads(first[0])["event"]
    running.let_go()
    site.service.go("gate")
    assert running.ended() == 3
    assert [written(site, form, "--at", event) for form in FORMS] == first
    assert written(site, "json") != first[0]


def test_e11_a_copy_in_another_ledger_gives_the_same_rows(site: Site) -> None:
    killed_while_asking(site)
    site.service.go("gate")
    assert site.resume().ended() == 3
    first = [written(site, form) for form in ("csv", "junit")]
    snapshot = exported(site)
    site.ledger = site.folder / "other" / "copy.db"
    site.ledger.parent.mkdir()
    assert site.start("import", snapshot).ended() == 0
    assert [written(site, form) for form in ("csv", "junit")] == first
