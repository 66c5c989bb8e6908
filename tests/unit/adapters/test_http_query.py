from __future__ import annotations

import asyncio
from typing import Any

from tallystick.adapters.http_target import HttpTarget
from tallystick.runner.protocols import QueryState

from .http_makers import ANSWERED, FAILED, make
from .makers import Service, dispatch_case, make_case, make_dispatching, make_slot, run

QUERY = {"url": "{base}/outcome/{{request_id}}", "answer": "$.answer", "never": {"status": [410]}}


def querying(service: Service, **query: Any) -> HttpTarget:
    table = {**QUERY, **query}
    table["url"] = table["url"].replace("{base}", service.url)
    return make(f"{service.url}/ask", if_unknown="query", query=table)


def test_e03c_query_tells_landed_pending_never_and_no_proof_apart(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        await target.open()
        slot = make_slot(make_case(behave={"answer": "kept"}))
        prepared = target.prepare(slot)
        unknown = await target.query("id-1", prepared)
        assert unknown.state == QueryState.NO_PROOF
        assert unknown.message.startswith("404: ")
        await target.dispatch(prepared, make_dispatching(slot, request_id="id-1"))
        landed = await target.query("id-1", prepared)
        assert landed.state == QueryState.LANDED
        assert landed.outcome is not None
        assert (landed.outcome.state, landed.outcome.answer) == (ANSWERED, "kept")

        waiting = make_slot(make_case(behave={"wait": "gate"}))
        call = asyncio.create_task(
            target.dispatch(target.prepare(waiting), make_dispatching(waiting, request_id="id-2"))
        )
        await asyncio.to_thread(service.wait_until_waiting, "gate")
        assert (await target.query("id-2", prepared)).state == QueryState.PENDING
        service.go("gate")
        await call
        await target.close()

    run(scenario())
    assert [line["request_id"] for line in service.lines()] == ["id-1", "id-2"]


def test_e03c_only_a_tombstone_proves_that_an_id_never_lands(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        tombstone = make(f"{service.url}/tombstone/id-3", json={}, answer="$.state")
        await target.open()
        await tombstone.open()
        slot = make_slot(make_case(behave={"answer": "too late"}))
        prepared = target.prepare(slot)
        assert (await target.query("id-3", prepared)).state == QueryState.NO_PROOF
        await dispatch_case(tombstone, make_case())
        assert (await target.query("id-3", prepared)).state == QueryState.NEVER
        late = await target.dispatch(prepared, make_dispatching(slot, request_id="id-3"))
        assert (late.state, late.status) == (FAILED, 409)
        await target.close()
        await tombstone.close()

    run(scenario())


def test_query_that_cannot_be_asked_proves_nothing(service: Service) -> None:
    async def scenario() -> None:
        target = querying(service)
        await target.open()
        service.stop()
        answer = await target.query("id", target.prepare(make_slot(make_case(behave={}))))
        assert answer.state == QueryState.NO_PROOF
        await target.close()

    run(scenario())


def test_query_can_tell_by_a_value_in_the_body(service: Service) -> None:
    rules = {
        "landed": {"path": "$.state", "equals": "done"},
        "never": {"path": "$.state", "equals": "never"},
        "pending": {"status": [404], "path": "$.state", "equals": "not known"},
    }

    async def scenario() -> None:
        target = querying(service, **rules)
        await target.open()
        answer = await target.query("id", target.prepare(make_slot(make_case(behave={}))))
        assert answer.state == QueryState.PENDING
        await target.close()

    run(scenario())
