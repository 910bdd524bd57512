"""``python -m helpers.select``."""

from helpers.select.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
