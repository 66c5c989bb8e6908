"""A headless Chromium, driven over the WebDriver protocol (w3.org/TR/webdriver2) that chromedriver speaks."""

from __future__ import annotations

import base64
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx

__all__ = ["Browser", "browser_programs", "started"]

_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
)
_SECONDS_MAX: Final = 60.0


def browser_programs() -> tuple[str, str] | None:
    """Where Chromium and its driver are, None where one is missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """One browser with one page."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._at = f"/session/{session}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        reply = self._client.request(method, self._at + path, json={} if body is None and method == "POST" else body)
        value = reply.json()["value"]
        if reply.status_code != 200:
            raise AssertionError(f"{method} {path}: {value}")
        return value

    def open(self, path: Path, *, anchor: str = "") -> None:
        """Load a file and wait until it is loaded."""
        self._ask("POST", "/url", {"url": path.resolve().as_uri() + anchor})

    def run(self, script: str, *values: Any) -> Any:
        """What the script returns; it waits for a promise."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(values)})

    def devtools(self, command: str, **values: Any) -> Any:
        """A command of the browser's own protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": values})

    def show_as(self, *, width: int, height: int = 900, dark: bool = False, mobile: bool = False) -> None:
        """The size of the screen, and whether the reader prefers it dark."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if mobile else 1,
            mobile=mobile,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """What is seen, the page's whole height."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """What the page has written to the console since it was last asked, errors and refusals among it."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]


@contextlib.contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in that folder; it and its driver are ended at the end."""
    programs = browser_programs()
    assert programs is not None, "install them: apt-get install --no-install-recommends chromium chromium-driver"
    browser, driver = programs
    options = {
        "binary": browser, "args": [*_FLAGS, f"--user-data-dir={folder / 'profile'}"],
    }  # fmt: skip
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    command = [driver, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            line = next(line for line in process.stdout if "started successfully" in line)
            yield from _session(f"http://127.0.0.1:{line.rsplit('port ', 1)[1].strip(' .' + chr(10))}", wanted)
        finally:
            process.terminate()


def _session(address: str, wanted: dict[str, Any]) -> Iterator[Browser]:
    with httpx.Client(base_url=address.strip(), timeout=_SECONDS_MAX, trust_env=False) as client:
        made = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        assert "sessionId" in made, made
        try:
            yield Browser(client, made["sessionId"])
        finally:
            client.delete(f"/session/{made['sessionId']}")
