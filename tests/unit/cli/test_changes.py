"""What ``resume`` is asked to change."""

from __future__ import annotations

from tests.unit.cli.project import Project


def test_a_retry_that_nothing_fits_is_said_to_be_one(project: Project) -> None:
    project.touch("fail")
    project.give("run", "order.toml")
    done = project.give("resume", "asked", "--retry", "failed:http.status")
    assert "nothing to retry: no planned observation is failed for the reason http.status" in done.err
    assert project.calls == 3
    done = project.give("resume", "asked", "--retry", "failed")
    assert "nothing to retry" not in done.err
    assert project.calls == 6
