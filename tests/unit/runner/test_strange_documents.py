"""A run whose documents nobody has written, as a snapshot made by hand may bring: it is shown, and not gone on with."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from tallystick.ledger import planning
from tallystick.ledger.errors import WorkOrderInvalid
from tallystick.ledger.run_reads import find_run
from tallystick.runner.reports import status_of
from tallystick.runner.sessions import stored_order
from tests.unit.ledger.factories import case_rows, new_ledger, run_plan

STRANGE = ['{"evil":1}', '{"variants":1}', '{"variants":{"default":1}}', '{"variants":{},"conversation":[]}']


@pytest.mark.parametrize("document", STRANGE)
def test_a_work_order_that_is_none_is_shown_and_refused_by_name(document: str, tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        plan = attrs.evolve(run_plan(), work_order=document)
        run = planning.create_run(ledger, plan, case_rows(1))
        assert status_of(ledger, run.run_id).run == run.run_id
        with ledger.reading() as reader:
            row = find_run(reader, run.run_id)
        with pytest.raises(WorkOrderInvalid, match=run.run_id):
            stored_order(row, folder=None)
