"""Chromium, JupyterLab and a notebook in it, each for as long as a block lasts."""

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parents[2]
PHONE, DESK = (390, 844), (1400, 1000)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_THERE = CHROMIUM and DRIVER and importlib.util.find_spec("selenium")
MISSING = "" if _THERE else "no browser: apt-get install chromium chromium-driver"
_PLACE = ".jupyter/lab/user-settings/@jupyterlab"
# Cells out of sight stay drawn, and no note of JupyterLab's lies over them.
_SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a headless Chromium that reaches this machine and its files alone."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        *("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"),
        *(f"window-size={DESK[0]},{DESK[1]}", "hide-scrollbars"),
        "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(f"--{flag}")
    logs = {"browser": "ALL", "performance": "ALL"}
    options.set_capability("goog:loggingPrefs", logs)
    browser = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


def open_page(
    browser: Any, page: Path, size: tuple[int, int] = DESK, scheme: str = "light"
) -> list[str]:
    """Open a page from disk with all of its pictures, on a screen of some size.

    List errors of the console and addresses that are not on disk.
    """
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1}
    metrics["mobile"] = size == PHONE
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    drawn = (
        "for (const one of document.images) one.loading = 'eager'; return "
        "[...document.images].every(one => one.naturalWidth)"
    )
    until(lambda: browser.execute_script(drawn), 60, f"no picture of {page.name}")
    entries = browser.get_log("performance")
    messages = [json.loads(entry["message"])["message"] for entry in entries]
    asked = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    here = ("file:", "data:", "blob:")
    return [url for url in asked if not url.startswith(here)] + errors(browser)


def errors(browser: Any) -> list[str]:
    """List what the console has called an error since the last look."""
    entries = browser.get_log("browser")
    told = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
    return [text for text in told if "beforeunload" not in text]  # a page was left


def until(what: Callable[[], Any], seconds: float, message: str) -> None:
    """Look again until it is so, at most for some time."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"{message} within {seconds:g} s"
        time.sleep(0.1)


@contextmanager
def jupyterlab(folder: Path) -> Iterator[Callable[[str], str]]:
    """Run JupyterLab below a folder; give what turns a path into an address."""
    for name, setting in _SETTINGS.items():
        place = f"{_PLACE}/{name}.jupyterlab-settings"
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, base = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0"]
    command += [f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    ours = ("JUPYTER", "JPY_", "WORKBOOK_", "IPYTHON", "XDG_")
    environment = {x: os.environ[x] for x in os.environ if not x.startswith(ours)}
    environment |= {"HOME": str(folder), "JUPYTER_TOKEN": token}  # none of its settings
    environment |= {"PYTHONPATH": str(PROJECT_ROOT)}
    with (folder / ".jupyter/server.log").open("wb") as log:
        server = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log
        )
    try:
        status = f"{base}/api/status?token={token}"
        until(lambda: _answers(status), 120, "JupyterLab did not start")
        # without what was open before
        yield lambda path: f"{base}/lab/tree/{path}?reset&token={token}"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


def _answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
        return bool(answer.read())
    return False


def run_notebook(browser: Any, address: str, seconds: float = 600) -> list[str]:
    """Open a notebook in JupyterLab and run its cells; list what those that failed say."""
    browser.get(address)
    panel = (
        "const panel = window.jupyterapp?.shell?.currentWidget, kernel = "
        "panel?.sessionContext?.session?.kernel;"
    )
    ready = (
        f"{panel} return arguments[0].includes(panel?.context?.path) "
        "&& kernel?.status == 'idle'"
    )
    until(lambda: browser.execute_script(ready, address), 180, "the kernel is not idle")
    browser.execute_script(
        "const end = () => { window.cellsEnded = true; }; window.jupyterapp.commands"
        ".execute('notebook:run-all-cells').then(end, end)"
    )
    ended = "return window.cellsEnded"
    until(lambda: browser.execute_script(ended), seconds, "the cells have not all run")
    cells = f"{panel} return panel.content.model.sharedModel.toJSON().cells"
    return [
        f"{output['ename']}: {output['evalue']}"
        for cell in browser.execute_script(cells)
        for output in cell.get("outputs", [])
        if output["output_type"] == "error"
    ]
