"""``python -m helpers.sweep``."""

import signal
import sys

from helpers.sweep.cli import main

# A reader that stops early, such as head, ends this command without an error.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sys.exit(main())
