"""What other packages bring is found, named with its version, and kept from being anybody else's trouble."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.adapters import registry
from tallystick.adapters.errors import KindAmbiguous
from tallystick.adapters.installed import Package, with_package
from tallystick.adapters.recorded_target import RecordedTarget
from tallystick.adapters.registry import JUDGES, TARGETS, judge_from_work_order, listed, target_from_work_order
from tallystick.ledger.errors import SecretMissing, TallystickError, TargetNotFound, UsageError, WorkOrderInvalid
from tallystick.runner.device_protocols import ConversationTarget, DeviceTarget
from tallystick.runner.judge_protocols import CallingJudge
from tallystick.runner.protocols import Judge, Target

Install = Callable[..., None]
MODULE = """
    from pathlib import Path
    from tallystick.adapters.recorded_target import RecordedTable, RecordedTarget
    from tallystick.adapters.rule_judges import exact

    class Own(RecordedTarget):
        kind = "own"

    def target(table, *, folder, place):
        return Own(RecordedTable(**table), folder=folder, place=place)

    def judge(table, *, folder, place):
        return exact(**table)

    def clumsy(table, *, folder, place):
        return len(table["count"])

    not_a_function = 5
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package into a folder on the path as an installer leaves it: a module and a dist-info."""

    put_in: list[str] = []

    def put(name: str, *, version: str | None = "1.0", target: str = "", judge: str = "", module: str = MODULE) -> None:
        site = tmp_path / name
        info = site / f"{name.replace('-', '_')}-{version or '0'}.dist-info"
        info.mkdir(parents=True)
        head = f"Metadata-Version: 2.1\nName: {name}\n" + (f"Version: {version}\n" if version else "")
        (info / "METADATA").write_text(head)
        points = f"[{TARGETS}]\n{target}\n[{JUDGES}]\n{judge}\n"
        (info / "entry_points.txt").write_text(points)
        own = name.replace("-", "_")
        (site / f"{own}.py").write_text(textwrap.dedent(module))
        put_in.append(own)
        monkeypatch.syspath_prepend(str(site))
        registry._entry_points.cache_clear()

    (tmp_path / "a.jsonl").write_text('{"id": "a", "answer": 1}\n')
    yield put
    for own in put_in:
        sys.modules.pop(own, None)
    registry._entry_points.cache_clear()


def made(tmp_path: Path, kind: str = "own", **table: Any) -> Target:
    return target_from_work_order(kind, {"file": "a.jsonl", **table}, folder=tmp_path, place="target")


def others() -> dict[str, str]:
    """Faults of what is not ours, by package and kind."""
    return {f"{one.package.name}:{one.kind}": one.fault for one in listed() if one.package.name != "tallystick"}


def test_the_package_and_its_version_are_part_of_what_identifies_an_adapter(install: Install, tmp_path: Path) -> None:
    install("lab-kit", version="2.3", target="own = lab_kit:target", judge="same = lab_kit:judge")
    target = made(tmp_path)
    judge = judge_from_work_order("same", {"name": "n"}, folder=tmp_path, place="judges[0]")
    package = {"name": "lab-kit", "version": "2.3"}
    assert target.identity()["adapter_package"] == package
    assert judge.identity()["adapter_package"] == package
    assert "answers" in target.identity()
    assert (
        "adapter_package"
        not in target_from_work_order("recorded", {"file": "a.jsonl"}, folder=tmp_path, place="target").identity()
    )


def test_an_installed_adapter_is_in_all_else_the_adapter_itself(install: Install, tmp_path: Path) -> None:
    install("lab-kit", target="own = lab_kit:target", judge="same = lab_kit:judge")
    target, judge = made(tmp_path), judge_from_work_order("same", {}, folder=tmp_path, place="judges[0]")
    assert isinstance(target, Target)
    assert not isinstance(target, DeviceTarget | ConversationTarget)
    assert isinstance(judge, Judge)
    assert not isinstance(judge, CallingJudge)
    assert (target.kind, target.if_unknown, getattr(target, "is_guarded", None)) == ("own", "repeat", None)
    assert (judge.name, judge.kind, judge.is_instant) == ("exact", "exact", True)  # type: ignore[attr-defined]


def test_whatever_protocol_an_adapter_has_it_has_with_its_package() -> None:
    class Device(RecordedTarget):
        resuming = "history"

        def __init__(self) -> None:
            self.opened = 0

        async def open(self) -> None:
            self.opened += 1

        def devices(self) -> tuple[()]:
            return ()

        async def take_over(self, tenure: Any) -> Any: ...
        async def let_go(self, tenure: Any) -> None: ...

    device = Device()
    wrapped = with_package(device, Package("p", "1"))
    assert isinstance(wrapped, DeviceTarget) == isinstance(device, DeviceTarget) is True
    assert isinstance(wrapped, ConversationTarget) == isinstance(device, ConversationTarget)
    wrapped.opened = 5
    wrapped.later = 6
    assert (device.opened, wrapped.later) == (5, 6)


def test_a_kind_that_two_packages_claim_is_refused_with_both_names(install: Install, tmp_path: Path) -> None:
    install("one-kit", target="own = one_kit:target")
    install("two-kit", version="3.1", target="own = two_kit:target")
    with pytest.raises(KindAmbiguous) as caught:
        made(tmp_path)
    assert str(caught.value) == (
        'target.kind: "own" is not one adapter: one-kit 1.0 and two-kit 3.1 claim it. Uninstall all of them but one'
    )
    told = "one-kit 1.0 and two-kit 3.1 claim it"
    assert others() == {"one-kit:own": told, "two-kit:own": told}


def test_one_that_fails_at_import_is_told_and_breaks_no_other(install: Install, tmp_path: Path) -> None:
    install("good-kit", target="own = good_kit:target")
    install("raising-kit", target="bad = raising_kit:target", module="raise ValueError('no licence\\nhere')")
    install("leaving-kit", target="gone = leaving_kit:target", module="raise SystemExit(3)")
    install("wrong-kit", target="none = wrong_kit:no_such\nfive = wrong_kit:not_a_function\nodd = :::")
    assert made(tmp_path).kind == "own"
    faults = others()
    assert faults["good-kit:own"] == ""
    assert faults["raising-kit:bad"] == "cannot be imported (ValueError: no licence)"
    assert faults["leaving-kit:gone"] == "cannot be imported (SystemExit: 3)"
    assert faults["wrong-kit:none"].startswith("cannot be imported (AttributeError: ")
    assert faults["wrong-kit:five"] == "it is no function"
    assert faults["wrong-kit:odd"].startswith("cannot be imported (")
    with pytest.raises(
        TargetNotFound, match=r'of kind "gone" \(leaving-kit 1.0\) cannot be imported \(SystemExit: 3\)'
    ):
        made(tmp_path, "gone")


def test_one_that_leaves_or_says_no_identity_is_told_with_its_package(install: Install, tmp_path: Path) -> None:
    install("leaving-kit", target="leaving = leaving_kit:made", module="def made(t, **k): raise SystemExit(0)")
    with pytest.raises(WorkOrderInvalid, match=r"\(leaving-kit 1.0\) failed on this table \(SystemExit: 0\)"):
        made(tmp_path, "leaving")

    class Nameless:
        def identity(self) -> None:
            return None

    with pytest.raises(UsageError, match="an adapter of p 1 says no identity, but NoneType"):
        with_package(Nameless(), Package("p", "1")).identity()


def test_one_of_a_kind_that_we_have_is_listed_as_not_used(install: Install, tmp_path: Path) -> None:
    install("lab-kit", target="recorded = lab_kit:target")
    assert others() == {"lab-kit:recorded": "tallystick has one of this kind, which is used"}
    assert type(made(tmp_path, "recorded")) is RecordedTarget


def test_every_adapter_of_ours_is_listed_and_can_be_used() -> None:
    ours = {(one.group, one.kind) for one in listed() if one.package.name == "tallystick" and not one.fault}
    assert ours == {(group, kind) for group, kinds in registry._BUILT_IN.items() for kind in kinds}


def test_a_package_with_broken_metadata_is_named_unknown(install: Install, tmp_path: Path) -> None:
    install("lab-kit", version=None, target="own = lab_kit:target")
    package = made(tmp_path).identity()["adapter_package"]
    assert package == {"name": "lab-kit", "version": "unknown"}


@pytest.mark.parametrize(
    ("point", "told"),
    [
        ("clumsy", 'target: the adapter of kind "own" (lab-kit 1.0) failed on this table (KeyError: '),
        ("judge", 'target: the adapter of kind "own" (lab-kit 1.0) failed on this table (TypeError: '),
    ],
)
def test_a_factory_that_raises_is_told_in_one_line(install: Install, tmp_path: Path, point: str, told: str) -> None:
    install("lab-kit", target=f"own = lab_kit:{point}")
    with pytest.raises(WorkOrderInvalid) as caught:
        made(tmp_path)
    assert str(caught.value).startswith(told)


def test_what_makes_no_target_is_refused(install: Install, tmp_path: Path) -> None:
    install("lab-kit", target="own = builtins:dict")
    with pytest.raises(WorkOrderInvalid, match=r'of kind "own" \(lab-kit 1.0\) made a dict. It has to make a target'):
        made(tmp_path)


def test_an_error_of_ours_out_of_a_factory_stays_what_it_is(install: Install, tmp_path: Path) -> None:
    module = """
        from tallystick.ledger.errors import SecretMissing
        def target(table, *, folder, place):
            raise SecretMissing("KEY is not set", "Set it", variable="KEY")
    """
    install("lab-kit", target="own = lab_kit:target", module=module)
    with pytest.raises(SecretMissing) as caught:
        made(tmp_path)
    assert isinstance(caught.value, TallystickError)
