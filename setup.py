"""Puts into a wheel what a clone has beside the modules: `helpers/installed.py`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PATTERNS = ("notebooks/*.ipynb", "params/*", "Snakefile", "docs/glossary.md")


class WithProject(build_py):
    """Copies the project's files into the package, but for an editable install."""

    def run(self):
        """Copy them after the modules."""
        super().run()
        if self.editable_mode:
            return
        root = Path(__file__).parent
        for pattern in PATTERNS:
            for path in root.glob(pattern):
                target = Path(self.build_lib, "helpers/project", path.relative_to(root))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)


setup(cmdclass={"build_py": WithProject})
