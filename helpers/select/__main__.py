"""``python -m helpers.select``."""

import sys

from helpers.select.cli import main

sys.exit(main())
