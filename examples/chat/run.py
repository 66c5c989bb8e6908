"""Starts the service, runs the work order against it, and sets the service's own counts beside the ledger's.

The service breaks each tenth answer off in the middle, as networks do.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).resolve().parent
CUT_EVERY = 10


def main() -> int:
    order = tomllib.loads((FOLDER / "order.toml").read_text(encoding="utf-8"))
    port = urlsplit(order["target"]["url"]).port
    command = [sys.executable, FOLDER / "server.py", "--port", str(port), "--cut-every", str(CUT_EVERY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        listening = service.stdout.readline()
        if not listening:
            return 1  # it has said why
        try:
            with tempfile.TemporaryDirectory() as folder:
                return run(ledger=Path(folder, "sums.db"), address=listening.split()[-1])
        finally:
            service.terminate()


def run(*, ledger: Path, address: str) -> int:
    status = tallystick("run", FOLDER / "order.toml", ledger=ledger).returncode
    if status != 0:
        return status  # it has said why
    with urllib.request.urlopen(f"{address}/counts", timeout=10) as answer:
        counts = json.load(answer)
    print()
    print(f"The service received {counts['received']} requests and answered {counts['whole']} of them whole.")
    return 0


def tallystick(*arguments: object, ledger: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tallystick", *map(str, arguments), "--ledger", str(ledger)]
    return subprocess.run(command, check=False)


if __name__ == "__main__":
    sys.exit(main())
