"""Chromium, JupyterLab and a notebook in it, each for as long as a block lasts; driven as a reader would, by keys and lists."""

import hashlib
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
RIGHT = "\ue014"  # the right arrow, as WebDriver writes the key
_PROGRAMS = {"chromium": ("chromium", "chromium-browser", "google-chrome"), "chromium-driver": ("chromedriver",)}
# Cells out of sight stay drawn, so that every control is there; and no note of JupyterLab's lies over them.
_SETTINGS = {
    "@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension/themes.jupyterlab-settings": {"theme": "JupyterLab Light"},
}


def program(package: str) -> str:
    """Find a program of a Debian package; "" where it is not installed."""
    return next((found for name in _PROGRAMS[package] if (found := shutil.which(name))), "")


def missing() -> str:
    """Say what a browser test lacks on this machine, and how to get it; "" when it lacks nothing."""
    packages = [package for package in _PROGRAMS if not program(package)]
    wanted = [f"apt-get install {' '.join(packages)}"] if packages else []
    wanted += [] if importlib.util.find_spec("selenium") else ["pip install selenium"]
    return f"no browser to test with: {' and '.join(wanted)}" if wanted else ""


@contextmanager
def chromium(width: int = 1400, height: int = 1000, *, dark: bool = False) -> Iterator[Any]:
    """Open a headless Chromium that reaches this machine and its files, and nothing else."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium")
    flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", f"--window-size={width},{height}"]
    flags += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars", "--force-device-scale-factor=1"]
    for flag in [*flags, *(["--force-dark-mode"] if dark else [])]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, Service(program("chromium-driver")))
    try:
        browser.set_script_timeout(60)
        yield browser
    finally:
        browser.quit()


def requests(browser: Any) -> list[str]:
    """List the addresses that the browser asked for since the last look."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"]


def copy_project(folder: Path) -> Path:
    """Copy helpers, notebooks, studies and the Snakefile, so that what runs there writes nothing in the project."""
    for name in ("helpers", "notebooks", "params"):
        shutil.copytree(PROJECT_ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints"))
    shutil.copy(PROJECT_ROOT / "Snakefile", folder)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Give the environment in which Python takes a copy of the project, and Jupyter no setting of the user's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_", "WORKBOOK_"))}
    own = {"JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime", "IPYTHONDIR": "ipython"}
    own |= {"JUPYTERLAB_SETTINGS_DIR": "settings", "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "MPLCONFIGDIR": "matplotlib"}
    return kept | {name: str(folder / ".jupyter" / place) for name, place in own.items()} | {"PYTHONPATH": str(folder)}


@contextmanager
def jupyterlab(folder: Path, seconds: float = 120) -> Iterator[Callable[[str], str]]:
    """Run JupyterLab on a free port below a folder; give what turns a path below it into an address."""
    for name, setting in _SETTINGS.items():
        path = folder / ".jupyter" / "settings" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(setting))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token, base = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"]
    with (folder / ".jupyter" / "server.log").open("wb") as log:
        given = environment(folder) | {"JUPYTER_TOKEN": token}
        server = subprocess.Popen(command, cwd=folder, env=given, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(f"{base}/api/status?token={token}", server, seconds, folder)
        yield lambda path: f"{base}/lab/tree/{path}?reset&token={token}"  # without what was open before
    finally:
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)


def _wait_for(address: str, server: subprocess.Popen, seconds: float, folder: Path) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not start:\n{(folder / '.jupyter' / 'server.log').read_text()[-2000:]}")


def until(what: Callable[[], Any], seconds: float, message: str) -> Any:
    """Look again until there is something; AssertionError with the message when there is nothing in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{message} within {seconds:g} s")


class Notebook:
    """A notebook that is open in JupyterLab."""

    _PANEL = "window.jupyterapp.shell.currentWidget"

    def __init__(self, browser: Any, address: str) -> None:
        """Open it and wait for its kernel."""
        self.browser = browser
        browser.get(address)
        ready = "const panel = window.jupyterapp?.shell?.currentWidget, kernel = panel?.sessionContext?.session?.kernel;"
        ready += "return address.includes(panel?.context?.path) && kernel?.connectionStatus == 'connected' && kernel?.status == 'idle'"
        until(lambda: browser.execute_script(f"const address = arguments[0]; {ready}", address), 180, "the kernel is not idle")

    def run_all(self, seconds: float = 1200) -> None:
        """Run all cells and wait for the last one; one that fails ends it, see ``faults``."""
        run = "window.cellsEnded = false; const end = () => { window.cellsEnded = true; };"
        self.browser.execute_script(f"{run} window.jupyterapp.commands.execute('notebook:run-all-cells').then(end, end)")
        until(lambda: self.browser.execute_script("return window.cellsEnded"), seconds, "the cells have not all run")

    def close(self) -> None:
        """End its kernel."""
        self.browser.execute_async_script(f"{self._PANEL}.sessionContext.shutdown().then(arguments[0], arguments[0])")

    def faults(self) -> list[str]:
        """List what the cells that failed say, and those without a number, which did not run."""
        cells = self.browser.execute_script(f"return {self._PANEL}.content.model.sharedModel.toJSON().cells")
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        failed = [f"{item['ename']}: {item['evalue']}" for cell in code for item in cell["outputs"] if item["output_type"] == "error"]
        text = ("".join(cell["source"]) for cell in code if not cell["execution_count"])
        return failed + [f"did not run: {source}" for source in text if source.strip()]

    def explorers(self) -> list["Explorer"]:
        """List the explorers that are shown, once what they draw is there."""
        drawn = "[...node.querySelectorAll('.js-plotly-plot .main-svg, .workbook-detail svg')].map(view => view.closest('.widget-vbox'))"
        boxes = self.browser.execute_script(f"const node = {self._PANEL}.node; return [...new Set({drawn})]")
        return [Explorer(self.browser, box) for box in boxes]

    def errors(self) -> list[str]:
        """List what the console has called an error since the last look, but for what leaving a page says."""
        return [
            entry["message"]
            for entry in self.browser.get_log("browser")
            if entry["level"] == "SEVERE" and "beforeunload" not in entry["message"]
        ]


class Explorer:
    """One explorer: plots or a gallery, and the controls and the reading that stand in the same box."""

    def __init__(self, browser: Any, box: Any) -> None:
        """Take its box."""
        self.browser, self.box = browser, box

    def find(self, selector: str) -> list[Any]:
        """Find elements of this explorer, not of one that stands inside it."""
        script = "return [...arguments[0].querySelectorAll(arguments[1])].filter(e => e.closest('.widget-vbox') == arguments[0])"
        return self.browser.execute_script(script, self.box, selector)

    def title(self) -> str:
        """Read the question."""
        return self.find("b")[0].text

    def described(self, element: Any) -> str:
        """Read the description of a control."""
        return self.browser.execute_script("return arguments[0].closest('.widget-inline-hbox')?.querySelector('label')?.innerText", element)

    def seen(self) -> str:
        """Give a digest of the plots and pictures as they are drawn."""
        views = "arguments[0].map(view => view.data ? JSON.stringify([view.data, view.layout.xaxis?.type]) : view.innerHTML).join()"
        drawn = self.browser.execute_script(f"return {views}", self.find(".js-plotly-plot, .workbook-gallery"))
        return hashlib.sha256(drawn.encode()).hexdigest()

    def reading(self) -> str:
        """Read the text of the explorer."""
        return " ".join(element.text for element in self.find(".widget-html-content"))

    def shown(self) -> str:
        """Give the digest of what is drawn, and the text."""
        return f"{self.seen()} {self.reading()}"

    def changes(self, act: Callable[[], None], look: Callable[[], str], seconds: float = 8) -> bool:
        """Do something and say whether what ``look`` gives becomes something else; seconds in which the kernel still works do not count."""
        before, step, last = look(), 0.05, time.monotonic() + 300
        act()
        while seconds > 0 and time.monotonic() < last:
            if look() != before:
                return True
            time.sleep(step)
            seconds -= step if self._kernel_waits() else 0
        return False

    def _kernel_waits(self) -> bool:
        return self.browser.execute_script(f"return {Notebook._PANEL}.sessionContext.session?.kernel?.status == 'idle'")

    def sliders(self) -> list[Any]:
        """List the handles of the sliders; a range has two, and one that is switched off has none."""
        return [handle for handle in self.find(".noUi-handle") if handle.get_attribute("aria-valuemin") and _enabled(self.browser, handle)]

    def press(self, handle: Any, key: str) -> None:
        """Move a slider by a key: END, HOME, ARROW_LEFT, ..."""
        from selenium.webdriver.common.keys import Keys

        self._scroll_to(handle)
        handle.send_keys(getattr(Keys, key))

    def lists(self) -> list[Any]:
        """List the lists that offer a choice, of one item or of several."""
        from selenium.webdriver.support.select import Select

        found = [Select(element) for element in self.find("select")]
        return [item for item in found if len(item.options) > 1]

    def choose(self, chosen: Any, index: int) -> None:
        """Choose an item of a list, and of a list of several that item alone."""
        self._scroll_to(chosen._el)
        if chosen.is_multiple:
            chosen.deselect_all()
        chosen.select_by_index(index)

    def tick(self, box: Any) -> None:
        """Tick a checkbox, or take the tick away."""
        self._scroll_to(box)
        box.click()

    def points(self) -> list[Any]:
        """List the points of the first plot, when the kernel waits and two looks in turn find them at the same place."""
        from selenium.common.exceptions import StaleElementReferenceException

        places: list[Any] = []

        def at_rest() -> list[Any]:
            found = self.find(".js-plotly-plot:first-of-type .points path")
            try:
                places.append(self.browser.execute_script(_PLACES, found))
            except StaleElementReferenceException:  # drawn anew between the two lines
                return []
            return found if self._kernel_waits() and places[-2:-1] == places[-1:] else []

        return until(at_rest, 180, "the points of the plot do not come to rest")

    def click(self, element: Any) -> None:
        """Click on the middle of something drawn."""
        from selenium.webdriver import ActionChains

        self._scroll_to(element)
        ActionChains(self.browser).move_to_element(element).click().perform()

    def _scroll_to(self, element: Any) -> None:
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)


_PLACES = "return arguments[0].map(one => Object.values(one.isConnected ? one.getBoundingClientRect().toJSON() : {}))"


def _enabled(browser: Any, handle: Any) -> bool:
    return browser.execute_script("return !arguments[0].closest('[disabled]')", handle)
