"""``python -m helpers.sweep``."""

import os
import sys

from helpers.sweep.cli import main

try:
    try:
        code = main()
    finally:
        sys.stdout.flush()
except BrokenPipeError:  # who read the output, such as head, has enough; what Python would still write to it goes nowhere
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = 141  # as of a command that SIGPIPE ends
sys.exit(code)
