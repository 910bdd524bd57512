"""Where a number comes from: versions, commit, device."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version

from helpers.files import PROJECT_ROOT

_PACKAGES = ("torch", "torchvision", "captum", "numpy", "scipy", "pandas", "seaborn", "papermill", "ipywidgets", "jupyterlab")


def versions(packages: tuple[str, ...] = ("torch", "torchvision", "numpy")) -> dict[str, str]:
    """Map "python" and each package to its version, "absent" where it is not installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def all_versions() -> dict[str, str]:
    """Versions of every package that a report rests on."""
    return versions(_PACKAGES)


def commit() -> str:
    """Give the short commit of the project, with "+changes" when the tree differs from it, "unknown" outside git."""
    try:
        revision = _git("rev-parse", "--short", "HEAD")
        return revision + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*arguments: str) -> str:
    run = subprocess.run(("git", *arguments), cwd=PROJECT_ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def device_name(device: object) -> str:
    """Name a torch device as a reader knows it: the GPU's model, or the processor's architecture and its threads."""
    import torch  # here, so that a launcher can ask for the commit without loading torch

    if torch.device(str(device)).type == "cuda":
        return torch.cuda.get_device_name(torch.device(str(device)))
    return f"CPU {platform.machine()}, {torch.get_num_threads()} thread(s)"
