"""``python -m helpers.select``."""

import os
import signal
import sys


def interrupted(number: int, frame: object) -> None:
    """End at once with one line: an exception inside the import of a compiled module would come out as another one, with a traceback."""
    os.write(2, b"python -m helpers.select: interrupted; nothing was ranked\n")
    os._exit(130)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupted)
    from helpers.select.cli import main

    sys.exit(main())
