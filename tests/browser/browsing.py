"""Chromium, JupyterLab and a notebook in it, each for as long as a block lasts.

Nothing waits a fixed time.
"""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parents[2]
PHONE, DESK = (390, 844), (1400, 1000)
CHROMIUM, DRIVER = (
    next(filter(None, map(shutil.which, names)), "")
    for names in (("chromium", "google-chrome"), ("chromedriver",))
)
_FOUND = CHROMIUM and DRIVER and importlib.util.find_spec("selenium")
MISSING = (
    ""
    if _FOUND
    else (
        "no browser to test with: apt-get install chromium chromium-driver, pip "
        "install selenium"
    )
)
# Cells out of sight stay drawn, and no note of JupyterLab's lies over them.
_SETTINGS = {
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {
        "windowingMode": "none"
    },
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}


@contextmanager
def chromium() -> Iterator[Any]:
    """Open a headless Chromium that reaches this machine and its files alone."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        f"--window-size={DESK[0]},{DESK[1]}",
    ]
    for flag in [
        *flags,
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        "--hide-scrollbars",
    ]:
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    browser = webdriver.Chrome(options, Service(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


def open_page(
    browser: Any, page: Path, size: tuple[int, int] = DESK, scheme: str = "light"
) -> list[str]:
    """Open a page from disk on a screen of some size, with all of its pictures.

    List errors of the console and addresses that are not on disk.
    """
    metrics = {
        "width": size[0],
        "height": size[1],
        "deviceScaleFactor": 1,
        "mobile": size == PHONE,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(page.as_uri())
    loaded = (
        "for (const one of document.images) one.loading = 'eager'; return "
        "[...document.images].every(one => one.naturalWidth)"
    )
    until(
        lambda: browser.execute_script(loaded),
        60,
        f"a picture of {page.name} is not drawn",
    )
    asked = [
        json.loads(entry["message"])["message"]
        for entry in browser.get_log("performance")
    ]
    asked = [
        message["params"]["request"]["url"]
        for message in asked
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [
        address
        for address in asked
        if not address.startswith(("file:", "data:", "blob:"))
    ] + errors(browser)


def errors(browser: Any) -> list[str]:
    """List what the console has called an error since the last look.

    What it says when a page is left is none.
    """
    found = [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE"
    ]
    return [message for message in found if "beforeunload" not in message]


def until(what: Callable[[], Any], seconds: float, message: str) -> Any:
    """Look again until there is something.

    AssertionError with the message when there is nothing in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{message} within {seconds:g} s")


@contextmanager
def jupyterlab(folder: Path, seconds: float = 120) -> Iterator[Callable[[str], str]]:
    """Run JupyterLab on a free port below a folder.

    Give what turns a path below it into an address.
    """
    for name, setting in _SETTINGS.items():
        path = folder / ".jupyter/settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, base = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        f"--port={port}",
    ]
    command += [
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.expose_app_in_browser=True",
    ]
    with (folder / ".jupyter/server.log").open("wb") as log:
        given = _environment(folder) | {"JUPYTER_TOKEN": token}
        server = subprocess.Popen(
            command,
            cwd=folder,
            env=given,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(
            lambda: _answers(f"{base}/api/status?token={token}"),
            seconds,
            "JupyterLab did not start",
        )
        yield (
            lambda path: f"{base}/lab/tree/{path}?reset&token={token}"
        )  # without what was open before
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def _environment(folder: Path) -> dict[str, str]:
    """The environment in which Jupyter knows no setting of the user's."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "JPY_", "WORKBOOK_"))
    }
    for kind in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{kind}_DIR"] = str(folder / f".jupyter/{kind.lower()}")
    for kind in ("SETTINGS", "WORKSPACES"):
        environment[f"JUPYTERLAB_{kind}_DIR"] = str(folder / f".jupyter/{kind.lower()}")
    environment["IPYTHONDIR"] = str(folder / ".jupyter/ipython")
    return environment | {"PYTHONPATH": str(PROJECT_ROOT)}


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).read()
        return True
    except (urllib.error.URLError, OSError):
        return False


def run_notebook(browser: Any, address: str, seconds: float = 600) -> list[str]:
    """Open a notebook in JupyterLab and run all of its cells.

    List what the cells that failed say.
    """
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
    run = (
        "const end = () => { window.cellsEnded = true; }; "
        "window.jupyterapp.commands.execute('notebook:run-all-cells').then(end, "
        "end)"
    )
    browser.execute_script(run)
    until(
        lambda: browser.execute_script("return window.cellsEnded"),
        seconds,
        "the cells have not all run",
    )
    cells = browser.execute_script(
        f"{panel} return panel.content.model.sharedModel.toJSON().cells"
    )
    return [
        f"{one['ename']}: {one['evalue']}"
        for cell in cells
        for one in cell.get("outputs", [])
        if one["output_type"] == "error"
    ]
