"""The Atlas protocol: page, schema, simulator and adapter say the same; the simulator does what the page demands."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from docs import generate_adapters
from tallystick.adapters.atlas_link import Asked
from tallystick.adapters.atlas_messages import ERRORS, REPLIES, REQUESTS
from tallystick.ledger.canonical import parse_json

from ...fixtures.atlas_handle import AtlasDevice
from .device_makers import a_device

PAGE = (generate_adapters.ATLAS_SCHEMA.parent / "atlas-protocol.md").read_text(encoding="utf-8")
SCHEMA = json.loads(generate_adapters.ATLAS_SCHEMA.read_text(encoding="utf-8"))
SN = {"serial": "SN-1"}


@pytest.fixture
def device(tmp_path: Path) -> Iterator[AtlasDevice]:
    with a_device(tmp_path) as started:
        yield started


def validate(name: str, message: Any) -> None:
    jsonschema.Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(message)


def later(work: Any) -> tuple[threading.Thread, list[Any]]:
    """A request of another client, that is still going on while the test goes on."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


# Page, schema, adapter.


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    names = {*(f"{name}-request" for name in REQUESTS), *(f"{name}-reply" for name in REPLIES), "Running"}
    assert SCHEMA["$defs"].keys() == names


def test_page_lists_every_message_and_every_error_with_its_status() -> None:
    assert {name for _, name in re.findall(r"^\| `(GET|POST) /v1/(\w+)` \|", PAGE, re.MULTILINE)} == (
        {"identity", "state"} | REQUESTS.keys()
    )
    listed = re.findall(r"^\| (\d{3}) \| `([\w.]+)` \| ([^|;:]+)", PAGE, re.MULTILINE)
    assert {error: int(status) for status, error, _ in listed} == {name: status for name, (status, _) in ERRORS.items()}


def test_messages_on_the_page_are_as_the_schema_says() -> None:
    request, reply = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    validate("submit-request", json.loads(request))
    validate("submit-reply", json.loads(reply))


ASKED: dict[str, dict[str, Any]] = {
    "fence": {},
    "submit": {"session": "s", "turn": 1, "checkpoint": True, "payload": {"x": [1, None, "\ud800"]}},
    "query": {"about": "r-2"},
    "cancel": {"about": "r-1", "boot_count": 1},
    "reset": {"session": "s", "force": False},
    "checkpoint": {"session": "s"},
    "restore": {"session": "s-2", "checkpoint": "e30="},
}


@pytest.mark.parametrize("name", REQUESTS)
def test_what_the_adapter_sends_is_as_the_schema_says(name: str) -> None:
    more: dict[str, Any] = dict(ASKED[name])
    payload = json.dumps(more.pop("payload")).encode() if "payload" in more else None
    asked = {} if name == "query" else {"request_id": "r-1"}
    body = Asked(name, {**SN, "fence": 3, **asked, **more}, payload).body()
    document = parse_json(body)
    validate(f"{name}-request", document)
    assert document == {**SN, "fence": 3, **asked, **ASKED[name]}


def test_request_that_is_not_as_the_protocol_says_is_not_sent() -> None:
    with pytest.raises(ValueError, match="fence"):
        Asked("fence", {**SN, "fence": 0, "request_id": "r"}).body()


@pytest.mark.parametrize("name", REQUESTS)
def test_what_the_simulator_answers_is_as_the_schema_says(device: AtlasDevice, name: str) -> None:
    if name in {"checkpoint", "restore"}:
        begun = device.post("submit", request_id="r-0", fence=3, session="s", turn=1, checkpoint=True, payload=1, **SN)
        ASKED["restore"]["checkpoint"] = begun["checkpoint"]
    reply = device.post(name, request_id="r-9", fence=3, **SN, **ASKED[name])
    assert reply.pop("status") == 200, reply
    validate(f"{name}-reply", reply)
    REPLIES[name].model_validate(reply)


@pytest.mark.parametrize("name", ["identity", "state"])
def test_what_the_simulator_says_of_itself_is_as_the_schema_says(device: AtlasDevice, name: str) -> None:
    reply = device.get(name)
    assert reply.pop("status") == 200
    validate(f"{name}-reply", reply)


# What a device must do.


def submit(device: AtlasDevice, request_id: str, *, fence: int = 3, **more: Any) -> dict[str, Any]:
    return device.post("submit", **{**SN, "request_id": request_id, "fence": fence, "payload": "x", **more})


def refused(reply: dict[str, Any], error: str) -> None:
    assert (reply["status"], reply["error"], reply["done"]) == (ERRORS[error][0], error, False)
    validate("error-reply", {name: value for name, value in reply.items() if name != "status"})


@pytest.mark.parametrize("name", REQUESTS)
def test_older_fence_is_refused_whatever_it_is_and_counted(device: AtlasDevice, name: str) -> None:
    device.post("fence", request_id="new", fence=5, **SN)
    reply = device.post(name, request_id="old", fence=4, **SN, **ASKED[name])
    refused(reply, "fence.stale")
    assert reply["highest_fence"] == 5
    state = device.get("state")
    assert state["stale"] == {"count": 1, "last": {"request_id": "old", "fence": 4}}
    assert state["sessions"] == []


def test_highest_fence_outlives_a_reboot(device: AtlasDevice) -> None:
    device.post("fence", request_id="new", fence=5, **SN)
    device.tell("reboot")
    refused(submit(device, "old", fence=4), "fence.stale")


def test_repeated_id_gets_the_same_reply_and_is_done_once(device: AtlasDevice) -> None:
    first = submit(device, "r", session="s", turn=1)
    again = submit(device, "r", fence=4, session="s", turn=1)
    assert (first["answer"], again["fence"]) == (again["answer"], 4)
    assert device.tell("machine")["said"] == {"s": ["x"]}
    assert [line["verdict"] for line in device.lines()] == ["accepted", "repeated"]


@pytest.mark.parametrize("other", [{"payload": "y"}, {"turn": 2}, {"session": "t"}], ids=str)
def test_repeated_id_with_another_message_is_refused(device: AtlasDevice, other: dict[str, Any]) -> None:
    submit(device, "r", session="s", turn=1)
    refused(submit(device, "r", **{"session": "s", "turn": 1, **other}), "request.reused")


def test_repetition_waits_for_what_is_being_done(device: AtlasDevice) -> None:
    first, found = later(lambda: submit(device, "r", payload={"behave": {"wait": "g"}, "answer": 1}))
    device.wait_until_waiting("g")
    again, repeated = later(lambda: submit(device, "r", payload={"behave": {"wait": "g"}, "answer": 1}))
    device.go("g")
    first.join()
    again.join()
    assert found[0]["answer"] == repeated[0]["answer"] == 1


def test_query_tombstones_an_id_that_was_never_seen(device: AtlasDevice) -> None:
    assert device.get("requests/r")["outcome"] == "unknown"
    assert device.post("query", about="r", fence=3, **SN)["outcome"] == "never"
    refused(submit(device, "r"), "request.tombstoned")
    device.tell("reboot")
    assert device.get("requests/r")["outcome"] == "never"


def test_query_says_what_is_known(device: AtlasDevice) -> None:
    submit(device, "done")
    busy, _ = later(lambda: submit(device, "busy", payload={"behave": {"wait": "g"}}))
    device.wait_until_waiting("g")
    found = {about: device.post("query", about=about, fence=3, **SN) for about in ("done", "busy")}
    assert {about: reply["outcome"] for about, reply in found.items()} == {"done": "landed", "busy": "pending"}
    assert found["done"]["reply"]["answer"] == "x"
    device.go("g")
    busy.join()
    device.tell("forget")
    assert device.post("query", about="done", fence=3, **SN)["outcome"] == "unknown"


@pytest.mark.parametrize(
    ("behave", "became"), [({"wait": "g"}, "never"), ({"wait": "g", "stubborn": True}, "pending")], ids=str
)
def test_cancel_says_what_became_of_it(device: AtlasDevice, behave: dict[str, Any], became: str) -> None:
    busy, found = later(lambda: submit(device, "busy", payload={"behave": behave}))
    device.wait_until_waiting("g")
    assert device.post("cancel", request_id="c", about="busy", fence=3, **SN)["became"] == became
    device.go("g")
    busy.join()
    if became == "never":
        refused(found[0], "request.tombstoned")
    assert device.post("cancel", request_id="d", about="unheard of", fence=3, **SN)["became"] == "never"


@pytest.mark.parametrize("name", ["submit", "reset", "checkpoint", "restore"])
def test_busy_device_does_nothing_else(device: AtlasDevice, name: str) -> None:
    busy, _ = later(lambda: submit(device, "busy", payload={"behave": {"wait": "g"}}))
    device.wait_until_waiting("g")
    reply = device.post(name, request_id="other", fence=3, **SN, **ASKED[name])
    refused(reply, "device.busy")
    assert reply["request"]["request_id"] == "busy"
    device.go("g")
    busy.join()


def test_forced_reset_leaves_what_it_broke_off_unknown(device: AtlasDevice) -> None:
    busy, found = later(lambda: submit(device, "busy", payload={"behave": {"wait": "g"}}))
    device.wait_until_waiting("g")
    assert device.post("reset", request_id="r", fence=4, force=True, **SN)["outcome"] == "done"
    busy.join()
    assert found[0]["outcome"] == "unknown"
    assert device.get("requests/busy")["outcome"] == "unknown"
    assert device.get("state")["state"] == "idle"


def test_reboot_loses_sessions_and_makes_what_was_being_done_unknown(device: AtlasDevice) -> None:
    submit(device, "one", session="s", turn=1)
    device.tell("plan", behave={"reboot": "during"})
    with pytest.raises(OSError):
        submit(device, "two", session="s", turn=2)
    state = device.get("state")
    assert (state["boot_count"], state["sessions"], state["state"]) == (2, [], "idle")
    assert device.get("requests/two")["outcome"] == "unknown"
    assert device.get("requests/one")["outcome"] == "landed"
    refused(submit(device, "three", boot_count=1), "device.rebooted")
    refused(submit(device, "four", session="s", turn=2), "session.unknown")


def test_device_that_is_started_again_on_its_log_is_the_same_after_a_reboot(tmp_path: Path) -> None:
    def broken_off(started: AtlasDevice) -> None:
        with pytest.raises(OSError):
            submit(started, "two", fence=6, payload={"behave": {"wait": "g"}})

    with a_device(tmp_path) as before:
        submit(before, "one", fence=6)
        busy, _ = later(lambda: broken_off(before))
        before.wait_until_waiting("g")
    busy.join()
    with a_device(tmp_path) as after:
        state = after.get("state")
        assert (state["boot_count"], state["highest_fence"], state["state"]) == (2, 6, "idle")
        assert after.get("requests/one")["reply"]["answer"] == "x"
        assert after.get("requests/two")["outcome"] == "unknown"


def test_turns_and_checkpoints_keep_their_order(device: AtlasDevice) -> None:
    refused(submit(device, "early", session="s", turn=2), "session.unknown")
    one = submit(device, "one", session="s", turn=1, checkpoint=True, payload="hello")
    refused(submit(device, "wrong", session="s", turn=3), "turn.unexpected")
    submit(device, "two", session="s", turn=2, payload="gone astray")
    restored = device.post("restore", request_id="r", fence=3, session="t", checkpoint=one["checkpoint"], **SN)
    assert restored["turn"] == 1
    assert submit(device, "three", session="t", turn=2, payload="and now?")["answer"] == {
        "turn": 2,
        "message": "and now?",
        "heard": ["hello"],
    }
    refused(device.post("restore", request_id="q", fence=3, session="u", checkpoint="bm8=", **SN), "checkpoint.refused")


def test_request_for_another_serial_is_not_done(device: AtlasDevice) -> None:
    device.tell("become", serial="SN-2", firmware="9")
    reply = submit(device, "r")
    refused(reply, "device.other")
    assert reply["serial"] == "SN-2"
