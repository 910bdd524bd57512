"""``python -m helpers.select``."""

import sys

if __name__ == "__main__":
    from helpers.select.cli import main

    sys.exit(main())
