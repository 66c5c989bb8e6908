"""The planned observations as a pandas data frame; needs the extra ``tallystick[pandas]``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ledger.errors import UsageError
from ..runner.report_reading import Report
from .columns import column_names, row_of

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["report_frame"]

_INSTANTS = ("began_at", "ended_at")


def report_frame(report: Report) -> pd.DataFrame:
    """One row a planned observation, with the columns of the CSV form.

    What is not known is missing (`pandas.NA`), instants are UTC, ``cost_usd`` is a number.
    Raises UsageError where pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as cause:
        raise UsageError("a data frame needs pandas", "install it with `pip install 'tallystick[pandas]'`") from cause
    names = column_names(report.summary)
    frame = pd.DataFrame([row_of(report.summary, slot) for slot in report.slots()], columns=names)
    for name in _INSTANTS:
        frame[name] = pd.to_datetime(frame[name], utc=True, format="ISO8601")
    frame["cost_usd"] = pd.to_numeric(frame["cost_usd"])
    return frame.convert_dtypes()
