"""``python -m helpers.sweep``."""

import signal
import sys

from helpers.sweep.cli import main

signal.signal(
    signal.SIGPIPE, signal.SIG_DFL
)  # a reader that has enough, such as head, ends this like any command
sys.exit(main())
