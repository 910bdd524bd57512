"""What ``killed.py`` changes in the processes of a study: writes that are slow where it asks for it, and guards that it switches off."""

import os
import sys
import time

_FOLDER, _BROKEN = (
    os.environ.get("WORKBOOK_FAULTS_FOLDER", ""),
    os.environ.get("WORKBOOK_FAULTS_BROKEN", ""),
)
_SLOW = 1.5  # seconds that a write takes where it is asked to be slow
_replace = os.replace


def _slow_replace(source, target, **options):
    """Replace a file, slowly where ``armed`` names a part of its name; not atomically where that is broken."""
    armed = os.path.join(_FOLDER, "armed")
    try:
        with open(armed) as file:
            slow = str(source).endswith(".partial") and file.read() in str(target)
    except OSError:
        slow = False
    if slow:
        if _BROKEN == "not-atomic":
            with open(source, "rb") as content, open(target, "wb") as half:
                half.write(content.read()[: os.path.getsize(source) // 2])
        with open(os.path.join(_FOLDER, f"inside-{os.getpid()}"), "w"):
            pass
        time.sleep(_SLOW)
    return _replace(source, target, **options)


if _FOLDER:
    os.replace = _slow_replace
    if _BROKEN in ("no-check", "no-parameters") and "snakemake" in sys.orig_argv:
        from snakemake.jobs import Job
        from snakemake.persistence import NO_PARAMS_CHANGE, PersistenceBase

        if _BROKEN == "no-parameters":
            PersistenceBase.params_changed = lambda self, job, file=None: (
                NO_PARAMS_CHANGE
            )
        else:
            from helpers.sweep.study import CheckedStudy

            async def _keep(self):
                """Leave the record of the execution before where it is."""

            async def _none(self, job):
                return []

            Job.remove_existing_output, PersistenceBase.incomplete = _keep, _none
            CheckedStudy.withdraw_changed = lambda self: None
