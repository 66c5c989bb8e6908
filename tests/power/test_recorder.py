"""A recording has everything that a program did to its files, and a fault where it was asked for."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .disk import Disk, Loss
from .records import Failed, Record, Said, Synced, Wrote, read_records
from .rig import why_not

RECORDER = Path(__file__).with_name("recorder.py")
WRITES = """
import os, threading
os.mkdir('made')
with open('made/one', 'wb', buffering=0) as file:
    file.write(b'first ')
    file.write(b'second')
    os.fsync(file.fileno())
    os.pwrite(file.fileno(), b'F', 0)
    file.truncate(9)
os.rename('made/one', 'made/two')
os.replace('made/two', 'three')
with open('three', 'ab') as file:
    file.write(b' more')
with open('three', 'rb') as source, open('copied', 'wb', buffering=0) as target:
    target.write(b'of three: ')
    os.copy_file_range(source.fileno(), target.fileno(), 4, offset_src=6)
os.open('gone', os.O_CREAT | os.O_WRONLY)
os.unlink('gone')
def write(name):
    with open(name, 'w') as file:
        file.write(name * 5000)
threads = [threading.Thread(target=write, args=(f't{number}',)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
if os.fork() == 0:
    write('child')
    os._exit(0)
os.wait()
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    if reason := why_not():
        pytest.skip(reason)
    place = tmp_path / "disk"
    place.mkdir()
    (place / "before").write_bytes(b"was there")
    return place


def recorded(root: Path, program: str, *options: str) -> tuple[subprocess.CompletedProcess[str], list[Record]]:
    log = root.parent / "log"
    places = ["--root", str(root), "--said", str(root.parent / "said"), "--log", str(log)]
    done = subprocess.run(
        [sys.executable, str(RECORDER), *places, *options, "--", sys.executable, "-c", program],
        cwd=root, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done, read_records(log)


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))
    }


def left(records: Sequence[Record], root: Path) -> dict[str, bytes | None]:
    disk = Disk(records, root)
    disk.advance(10**9)
    return dict(disk.left(Loss.NOTHING, random.Random(0)))


def test_a_recording_leads_to_the_very_files_that_the_program_left(root: Path) -> None:
    done, records = recorded(root, WRITES)
    assert done.returncode == 0, done.stderr
    assert left(records, root) == tree(root)
    assert tree(root)["three"] == b"First sec more"
    assert tree(root)["copied"] == b"of three: sec "
    assert tree(root)["before"] == b"was there"


def test_words_stand_in_the_order_of_everything_else(root: Path) -> None:
    said = root.parent / "said"
    _, records = recorded(
        root,
        "import os\n"
        f"said = os.open({str(said)!r}, os.O_CREAT | os.O_WRONLY | os.O_APPEND)\n"
        "file = os.open('file', os.O_CREAT | os.O_WRONLY)\n"
        "os.write(file, b'x'); os.write(said, b'written\\n'); os.fsync(file); os.write(said, b'synced\\n')\n",
    )
    told = [record for record in records if isinstance(record, Said | Wrote | Synced) and record.begun > 0]
    assert [getattr(record, "text", type(record).__name__) for record in told] == [
        "Wrote", "written\n", "Synced", "synced\n",
    ]  # fmt: skip


SYNCS = """
import os
file = os.open('file', os.O_CREAT | os.O_WRONLY)
for number in range(4):
    os.write(file, b'x')
    try:
        os.fsync(file)
    except OSError as problem:
        print(number, problem.errno, flush=True)
"""


@pytest.mark.parametrize(("fault", "failed"), [("sync:EIO:2", [1]), ("sync:EIO:2-", [1, 2, 3]), ("any:EIO:99", [])])
def test_the_asked_calls_fail_and_no_others(root: Path, fault: str, failed: list[int]) -> None:
    done, records = recorded(root, SYNCS, "--fail", fault)
    assert done.stdout.splitlines() == [f"{number} 5" for number in failed]
    assert len([record for record in records if isinstance(record, Failed)]) == len(failed)
    assert [record.failed for record in records if isinstance(record, Synced)] == [at in failed for at in range(4)]


def test_calls_are_counted(root: Path) -> None:
    done, _ = recorded(root, SYNCS, "--count")
    assert json.loads(done.stdout) == {"make": 1, "write": 4, "sync": 4, "any": 9}


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.link('before', 'link')",
        "import os; os.symlink('before', 'link')",
        "import mmap; file = open('before', 'r+b'); mmap.mmap(file.fileno(), 0)",
        "import os; file = os.open('before', os.O_WRONLY); os.writev(file, [b'a', b'b'])",
        "import shutil; shutil.copyfile('before', 'copy')",
        "import os; os.sync()",
        "import os; os.rename('before', '../before')",
    ],
)
def test_what_is_not_understood_ends_the_recording(root: Path, program: str) -> None:
    done, _ = recorded(root, program)
    assert done.returncode != 0
    assert "Unknown" in done.stderr


def test_the_program_ends_as_it_would_by_itself(root: Path) -> None:
    assert recorded(root, "raise SystemExit(7)")[0].returncode == 7
    assert recorded(root, "import os; os.kill(os.getpid(), 9)")[0].returncode == 128 + 9
