"""Two runs and one device: the one that has it is killed, the other takes over, and the first goes on where it was.

The device is the simulator of the tests, a process of its own with a durable log. At the end its log and the ledger are
set side by side.
"""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).resolve().parent
SIMULATOR = FOLDER.parents[1] / "tests" / "fixtures" / "atlas_device.py"
DEVICE = "atlas:SN-0042"
PATIENCE_SECONDS = 60

LEDGER_SIDE = """
SELECT c.call_id, r.name, coalesce(k.case_id, '-'), c.role, d.state, d.settled_by
FROM calls c JOIN runs r ON r.run_key = c.run_key
JOIN dispatches d ON d.call_id = c.call_id
LEFT JOIN slots s ON s.run_key = c.run_key AND s.slot_no = c.slot_no
LEFT JOIN cases k ON k.run_key = s.run_key AND k.case_no = s.case_no
WHERE c.fence IS NOT NULL
"""


def main() -> int:
    if not SIMULATOR.exists():
        print(f"the simulator is not at {SIMULATOR}; run this in a checkout of tallystick", file=sys.stderr)
        return 1
    order = tomllib.loads((FOLDER / "long.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "device.jsonl"
        port = urlsplit(order["target"]["url"]).port
        command = [sys.executable, SIMULATOR, "--log", log, "--port", str(port), "--serial", "SN-0042"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as device:
            if not device.stdout.readline():
                return 1  # it has said why
            try:
                return Show(folder, log, order["target"]["url"]).run()
            finally:
                device.terminate()


class Show:
    def __init__(self, folder: Path, log: Path, url: str) -> None:
        self.ledger = folder / "bench.db"
        self.log = log
        self.url = url
        # The locks that keep ledgers of this machine apart; here in a folder of their own, to leave nothing behind.
        self.environment = {**os.environ, "TALLYSTICK_DEVICE_LOCKS": str(folder / "locks")}

    def run(self) -> int:
        self.tell("plan", behave={}, times=4)
        self.tell("plan", behave={"wait": "gate"})
        long = self.start("run", FOLDER / "long.toml")
        self.tell("waiting/gate")
        print("Run long has the device, which is busy with turn 2 of its second conversation.")

        short = self.start("run", FOLDER / "short.toml")
        until(lambda: self.read("device", "show", DEVICE)["waiters"])
        print("Run short stands in line:\n")
        print(self.tallystick("device", "show", DEVICE).stdout)

        killed_at = time.monotonic()
        os.kill(long.pid, signal.SIGKILL)
        first = self.requests()[0]["fence"]
        until(lambda: self.requests()[-1]["fence"] > first)
        print(f"Run long is killed with SIGKILL; run short has the device {time.monotonic() - killed_at:.3f} s later.")
        self.tell("go/gate")  # the device ends what it was doing for the killed run, and nobody hears its answer
        long.communicate()
        told, _ = short.communicate()
        if short.returncode != 0:
            print(told)
            return 1
        print("Run short has asked the device what became of the request, and is finished. Run long is resumed:\n")
        resumed = self.tallystick("resume", "long")
        print(resumed.stdout)
        return resumed.returncode or self.compare()

    def compare(self) -> int:
        """The device's log beside the ledger, and whether they agree."""
        with sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True) as connection:
            known = {call_id: told for call_id, *told in connection.execute(LEDGER_SIDE)}
        connection.close()
        print("what the device wrote down                   | what the ledger says of it")
        print("fence  message     verdict   session   turn  | run    case       role       state     by")
        requests = self.requests()
        for line in requests:
            about = known.get(line["request_id"] or line["about"], ["?"] * 5)
            session, turn = (line["session"] or "-")[-6:], line["turn"] or "-"
            left = f"{line['fence']:<6} {line['role']:<11} {line['verdict']:<9} {session:<9} {turn!s:<5}"
            print(f"{left} | {about[0]:<6} {about[1]:<10} {about[2]:<10} {about[3]:<9} {about[4]}")
        print()
        done = [line["request_id"] for line in requests if line["verdict"] == "accepted" and line["request_id"]]
        fences = [line["fence"] for line in requests]
        checks = {
            "the fences never fall": fences == sorted(fences),
            "nothing was done twice": len(done) == len(set(done)),
            "the ledger knows every request": set(done) <= known.keys(),
        }
        for claim, holds in checks.items():
            print(f"{'yes' if holds else 'NO '}  {claim}")
        return 0 if all(checks.values()) else 1

    def requests(self) -> list:
        lines = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line["event"] == "request"]

    def tell(self, name: str, **document: object) -> None:
        request = urllib.request.Request(f"{self.url}/sim/{name}", json.dumps(document).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            answer.read()

    def start(self, *arguments: object) -> subprocess.Popen:
        command = [sys.executable, "-m", "tallystick", *map(str, arguments), "--ledger", str(self.ledger)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def tallystick(self, *arguments: object) -> subprocess.CompletedProcess:
        with self.start(*arguments) as process:
            told, _ = process.communicate(timeout=PATIENCE_SECONDS)
        return subprocess.CompletedProcess(process.args, process.returncode, told)

    def read(self, *arguments: object) -> dict:
        return json.loads(self.tallystick(*arguments, "--json").stdout)


def until(condition: object) -> None:
    """Look again and again, within a bound."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {PATIENCE_SECONDS} s in vain")
        select.select([], [], [], 0.01)


if __name__ == "__main__":
    sys.exit(main())
