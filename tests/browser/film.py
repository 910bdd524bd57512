"""The film of README: the explorer of a report while its threshold is moved.

``python -m tests.browser.film kinds20 docs/explorer.webp`` opens the page as a reader
does, in headless Chromium, and takes a picture after each step.
"""

import base64
import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from tests.browser import browsing

SCREEN = (1180, 1000)
WIDTH = 760  # of the film, pixels
STEP = 520  # milliseconds a threshold is shown
PAUSE = 2600  # and another measure
LARGEST = 2_000_000  # bytes
_EXPLORER = "document.querySelector('.explorer[data-kind=maps]')"


def frames(browser: Any, page: Path) -> list[tuple[Image.Image, int]]:
    """Pictures of the explorer of maps with the time that each is shown.

    The slider passes over all thresholds; then the map is cut to the area of the box,
    and then to its maximum.
    """
    browsing.open_page(browser, page, SCREEN)
    measures = browser.execute_script(
        f"return [...{_EXPLORER}.querySelector('select').options].map(one => one.text)"
    )
    thresholds = browser.execute_script(
        f"return Number({_EXPLORER}.querySelector('input').max)"
    )
    film = []
    for place in range(thresholds + 1):
        _set(browser, "input", place, "input")
        film.append((_picture(browser), STEP))
    for name in ("area-matched IoU", "pointing game"):
        (place,) = [at for at, text in enumerate(measures) if text.startswith(name)]
        _set(browser, "select", place, "change")
        film.append((_picture(browser), PAUSE))
    return film


def _set(browser: Any, control: str, value: int, event: str) -> None:
    browser.execute_script(
        f"const one = {_EXPLORER}.querySelector(arguments[0]);"
        "one.value = arguments[1];"
        "one.dispatchEvent(new Event(arguments[2], {bubbles: true}));",
        control,
        str(value),
        event,
    )


def _picture(browser: Any) -> Image.Image:
    """The explorer from its controls to its lower curve."""
    box = browser.execute_script(
        f"const one = {_EXPLORER}, top = one.getBoundingClientRect();"
        "const end = one.querySelector('.curve').getBoundingClientRect();"
        "return [top.left, top.top + scrollY, top.width, end.bottom - top.top];"
    )
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True))
    options = {"format": "png", "captureBeyondViewport": True}
    shot = browser.execute_cdp_cmd(
        "Page.captureScreenshot",
        options | {"clip": clip | {"scale": WIDTH / clip["width"]}},
    )
    return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")


def write(report: Path, path: Path) -> None:
    """Record the film of a report.

    Raises:
        ValueError: if it would be larger than ``LARGEST``.
    """
    with browsing.chromium() as browser:
        film = frames(browser, report.parent / "_site" / report.name / "explore.html")
    pictures = [picture for picture, _ in film]
    size = pictures[0].size
    file = io.BytesIO()
    pictures[0].save(
        file,
        "webp",
        save_all=True,
        append_images=[picture.resize(size) for picture in pictures[1:]],
        duration=[shown for _, shown in film],
        loop=0,
        quality=60,
        method=4,
    )
    if len(file.getvalue()) > LARGEST:
        raise ValueError(
            f"the film has {len(file.getvalue())} bytes, {LARGEST} at most"
        )
    path.write_bytes(file.getvalue())


if __name__ == "__main__":
    write(browsing.PROJECT_ROOT / "reports" / sys.argv[1], Path(sys.argv[2]))
