"""E13: what may change under a run and what may not."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import Site
from .invariants import check_invariants, rows
from .orders import case, execution, http_order, python_target, work_order


def half_done(site: Site, **options: Any) -> dict[str, Any]:
    """A run that died with one of three cases answered."""
    order = http_order(site.service, [case(name) for name in "abc"], **options)
    site.order(order)
    site.run(crashpoint="dispatch.outcome.committed").died_at_its_point()
    return order


def changed(order: dict[str, Any], table: str, **keys: Any) -> dict[str, Any]:
    return {**order, table: {**order[table], **keys}}


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("url", lambda order: changed(order, "target", url=order["target"]["url"] + "/v2")),
        ("json", lambda order: changed(order, "target", json={"text": "{{input}}"})),
        ("repetitions", lambda order: changed(order, "cases", repetitions=2)),
        ("cases", lambda order: changed(order, "cases", items=order["cases"]["items"][:2])),
    ],
)
def test_e13_changed_configuration_is_refused_with_the_difference(site: Site, what: str, change: Any) -> None:
    order = half_done(site)
    before = rows(site.ledger, "SELECT run_key, event_no, kind FROM events"), site.service.received()
    site.order(change(order))

    refused = site.run()

    assert refused.ended() == 4
    assert len(refused.err.strip().splitlines()) == 1, refused.err
    assert "run.identity_changed" in refused.err
    assert what in refused.err
    assert "->" in refused.err
    assert (rows(site.ledger, "SELECT run_key, event_no, kind FROM events"), site.service.received()) == before
    site.order(order)
    assert site.run().ended() == 0, "unchanged, it goes on"
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e13_changing_only_throughput_goes_on(site: Site) -> None:
    order = half_done(site)
    options = execution(concurrency=3, rate_per_second=500.0, grace_seconds=1.0)
    site.order({**order, "execution": options})
    assert site.run().ended() == 0
    assert site.service.received() == 3
    assert rows(site.ledger, "SELECT count(*) FROM runs") == [(1,)]
    check_invariants(site.ledger, site.requests())


def test_e13_changing_a_limit_goes_on_and_is_recorded(site: Site) -> None:
    order = half_done(site, budgets={"dispatches": 2})
    assert site.run().ended() == 6
    site.order({**order, "budgets": {"dispatches": 3}})
    assert site.run().ended() == 0
    assert rows(site.ledger, "SELECT old_limit, new_limit, made_by FROM budget_amendments") == [(2, 3, "work order")]
    assert site.service.received() == 3
    check_invariants(site.ledger, site.requests())


def test_e13_a_new_run_is_made_of_a_changed_work_order_where_that_is_asked_for(site: Site) -> None:
    order = half_done(site)
    site.order(changed(order, "cases", repetitions=2))
    assert site.run("--new").ended() == 0
    assert rows(site.ledger, "SELECT state, planned FROM runs ORDER BY run_key") == [("open", 3), ("finished", 6)]
    assert site.service.received() == 1 + 6


def test_e13_unchanged_work_order_always_goes_on(site: Site) -> None:
    half_done(site, if_unknown="repeat")
    for _ in range(2):
        site.run(crashpoint="dispatch.sent").died_at_its_point()
    assert site.run().ended() == 0
    assert rows(site.ledger, "SELECT count(*) FROM runs") == [(1,)]
    check_invariants(site.ledger, site.requests())


def test_e13_changed_code_of_a_python_target_is_refused(site: Site) -> None:
    site.order(work_order(python_target(site.folder), [{"id": name, "input": name} for name in "abc"], judges=[]))
    site.run(crashpoint="dispatch.outcome.committed").died_at_its_point()
    source = site.folder / "counting_target.py"
    code = source.read_text()
    source.write_text(code.replace("return behave\n", "return f'{behave} differently'\n", 1))

    for refused in (site.resume(), site.run()):
        assert refused.ended() == 4
        assert "run.identity_changed" in refused.err
        assert "sha256" in refused.err
        assert len(refused.err.strip().splitlines()) == 1, refused.err
    assert len(site.requests()) == 1

    source.write_text(code)
    assert site.resume().ended() == 0
    assert len(site.requests()) == 3
    check_invariants(site.ledger, site.requests())
