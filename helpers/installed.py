"""A folder of studies for an installed wheel, without a clone."""

import shutil
from pathlib import Path

from helpers.files import PROJECT_ROOT, SHIPPED, complete_or_absent


def unpack(root: Path = PROJECT_ROOT, shipped: Path = SHIPPED) -> list[Path]:
    """Copy notebooks, studies and the rules of a sweep out of an installed wheel.

    Existing files stay as they are. A clone has all of them, and nothing is copied.

    Args:
        root: folder of the user's studies, see ``files.PROJECT_ROOT``.
        shipped: folder of the package that holds the files.

    Returns:
        Files that were written, relative to ``root``.
    """
    written = []
    for path in sorted(shipped.rglob("*")):
        place = path.relative_to(shipped)
        if path.is_file() and not (root / place).exists():
            with complete_or_absent(root / place) as temporary:
                shutil.copyfile(path, temporary)
            written.append(place)
    return written
