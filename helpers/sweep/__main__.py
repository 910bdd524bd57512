"""``python -m helpers.sweep``."""

import os
import sys

try:
    os.getcwd()
except FileNotFoundError:
    sys.exit("the current folder was deleted; go to another one, such as the project's, and try again")

from helpers.sweep.cli import main

try:
    code = main()
    sys.stdout.flush()
except BrokenPipeError:  # who read the output, such as head, has enough
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = 141
except OSError as fault:  # such as a full disk
    sys.exit(f"the sweep stopped: {fault}; what was complete is kept, and the same command goes on")
sys.exit(code)
