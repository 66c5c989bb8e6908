from __future__ import annotations

import re
from pathlib import Path

from docs import generate_adapters
from tallystick.adapters.atlas_messages import ERRORS
from tallystick.adapters.reasons import REASONS
from tallystick.runner.device_protocols import LEASE_LOST, SESSION_LOST

ROOT = Path(__file__).resolve().parents[3]
GROUPS = (
    "adapter|answer|body|chat|checkpoint|connect|device|http|lease|output|process|python|reply|request|session|stream"
    "|target|wire"
)
TOKEN = re.compile(rf'"((?:{GROUPS})\.[a-z_]+|deadline)"')


def test_page_is_what_the_code_says() -> None:
    written = (generate_adapters.REFERENCE / generate_adapters.PAGE).read_text(encoding="utf-8")
    assert written == generate_adapters.render(), "run python docs/generate_adapters.py"


def test_every_reason_that_a_target_gives_is_in_the_reference_and_every_one_there_is_given() -> None:
    sources = [path for path in (ROOT / "adapters").glob("*.py") if path.name != "reasons.py"]
    given = {reason for path in sources for reason in TOKEN.findall(path.read_text(encoding="utf-8"))}
    said_by_a_device = ERRORS.keys() - REASONS.keys()
    assert (given | {LEASE_LOST, SESSION_LOST}) - {"target.py"} - said_by_a_device == REASONS.keys()


def test_schema_of_the_atlas_protocol_is_what_the_models_say() -> None:
    written = generate_adapters.ATLAS_SCHEMA.read_text(encoding="utf-8")
    assert written == generate_adapters.atlas_schema(), "run python docs/generate_adapters.py"
