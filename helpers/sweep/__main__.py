"""``python -m helpers.sweep``."""

import sys

from helpers.sweep.cli import main

sys.exit(main())
