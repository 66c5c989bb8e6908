"""C51: processes that claim from one run at once lose no slot, double none, and never see a locked ledger."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.unit.ledger.factories import new_ledger, opened_run

PROCESSES = 8
SLOTS = 120
ROOT = Path(__file__).parents[3]
CLAIM_ALL = """
import sys
from tallystick.ledger.errors import TransitionRefused
from tallystick.ledger.ledger import Ledger
from tests.unit.ledger.factories import begin

with Ledger.open(sys.argv[1]) as ledger:
    ledger.worker_id
    print("ready", flush=True)
    sys.stdin.readline()
    for slot_no in range(1, int(sys.argv[3]) + 1):
        try:
            begin(ledger, int(sys.argv[2]), slot_no)
        except TransitionRefused:
            continue
        print(slot_no, flush=True)
"""


def test_of_eight_processes_that_claim_every_slot_each_slot_goes_to_exactly_one(tmp_path: Path) -> None:
    with new_ledger(tmp_path) as ledger:
        run_key = opened_run(ledger, SLOTS).run_key
        command = [sys.executable, "-c", CLAIM_ALL, str(ledger.path), str(run_key), str(SLOTS)]
        claimers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            for _ in range(PROCESSES)
        ]
        for claimer in claimers:
            assert claimer.stdout is not None
            assert claimer.stdout.readline() == "ready\n"
        told = [claimer.communicate("go\n")[0] for claimer in claimers]
        assert [claimer.returncode for claimer in claimers] == [0] * PROCESSES
        claimed = Counter(int(line) for said in told for line in said.split())
        assert claimed == Counter(range(1, SLOTS + 1))
        with ledger.reading() as reader:
            assert reader.rows("SELECT count(*), max(attempt_no) FROM attempts") == [(SLOTS, 1)]
