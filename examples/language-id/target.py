"""Two language identifiers from PyPI, as targets: each takes a case and answers with a language code.

Where the environment variable LANGUAGE_ID_COUNTER names a file, every call first appends one synced line to it. That
file knows nothing of the ledger, and so it can bear witness of how many calls were really made.
"""

import json
import os
import time

import py3langid
from langdetect import DetectorFactory, LangDetectException, detect, detector_factory

from tallystick import Case

# langdetect draws n-grams by chance; with a fixed seed the same text always gets the same answer.
DetectorFactory.seed = 20240229

# Both packages load their models lazily and without a lock. Load them here, before calls come from several threads.
detector_factory.init_factory()
py3langid.classify("")

# The two packages name some languages more finely than the case file: by region, or below the ISO 639 macrolanguage.
BROADER = {"nb": "no", "nn": "no", "yue": "zh", "wuu": "zh", "arz": "ar", "ary": "ar"}


def identify_with_py3langid(case: Case) -> str:
    count_call("py3langid", case.id)
    code, _ = py3langid.classify(str(case.input))
    return normalised(code)


def identify_with_langdetect(case: Case) -> str:
    count_call("langdetect", case.id)
    try:
        return normalised(detect(str(case.input)))
    except LangDetectException:
        return "und"  # "no features in text": an answer, and a wrong one


def normalised(code: str) -> str:
    """zh-cn becomes zh, nn becomes no."""
    language = code.lower().split("-")[0]
    return BROADER.get(language, language)


def count_call(target: str, case_id: str) -> None:
    path = os.environ.get("LANGUAGE_ID_COUNTER")
    if path is None:
        return
    line = json.dumps({"target": target, "case": case_id, "at": time.time()}) + "\n"
    # One write to a file opened for appending is never torn between processes; the sync makes it outlive a kill.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
