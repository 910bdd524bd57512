"""Command line: ``python -m helpers.checkpoints CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DESCRIPTION = """Predict the test accuracy of checkpoints from their training images,
by the rule of this repository's studies. Nothing is trained, no test image is needed,
and no code from a checkpoint is run."""


def _lines(path: str) -> list[str]:
    """Lines of a text file, without empty ones."""
    lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    return [line.strip() for line in lines if line.strip()]


# Arguments in the order of --help: fields of ``judging.Inputs``, and where and how.
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "checkpoints": {
        "type": Path,
        "help": "folder of .safetensors, .pt or .pth; or a file",
    },
    "images": {
        "type": Path,
        "help": "folder or .zip of training images, a folder a class",
    },
    "--labelled": {"type": Path, "help": "held-out images with labels, 50 or more"},
    "--unlabelled": {"type": Path, "help": "images without labels, to order networks"},
    "--architecture": {
        "default": "auto",
        "help": "a name of torchvision or timm, or module:function; auto recognises "
        "torchvision's ResNets",
    },
    "--classes": {
        "type": _lines,
        "default": (),
        "help": "text file with a class a line, in the order of the outputs; "
        "sorted without it",
    },
    "--image-size": {
        "type": int,
        "default": 0,
        "help": "side of the images in training, pixels; without it the usual size "
        "with the highest training accuracy",
    },
    "--mean": {
        "type": float,
        "nargs": 3,
        "default": (),
        "help": "of the normalisation, RGB, 0 to 1",
    },
    "--std": {
        "type": float,
        "nargs": 3,
        "default": (),
        "help": "of the normalisation, RGB, 0 to 1",
    },
    "--images-per-class": {
        "type": float,
        "default": 0.0,
        "help": "in training, where IMAGES holds only some of them",
    },
    "--reports": {"default": "reports", "help": "of the studies that calibrate"},
    "--device": {"default": "auto", "help": "cpu, cuda or auto"},
    "--out": {"type": Path, "default": Path("own"), "help": "folder for verdicts.csv"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 when a checkpoint was judged, 1 when none could be, 2 when an argument is
        wrong.
    """
    parser = argparse.ArgumentParser(
        prog="python -m helpers.checkpoints", description=_DESCRIPTION
    )
    for name, argument in _ARGUMENTS.items():
        parser.add_argument(name, **argument)
    try:
        return _judge(**vars(parser.parse_args(arguments)))
    except (ValueError, OSError) as fault:
        print(f"{parser.prog}: {fault}", file=sys.stderr)
        return 2


def _judge(reports: str, device: str, out: Path, **inputs: Any) -> int:
    # Imported here, since torch takes seconds to import and --help does not need it.
    from helpers.checkpoints import judging
    from helpers.files import complete_or_absent, from_root
    from helpers.training.pool import choose_device

    judged = judging.judge(
        judging.Inputs(**inputs), from_root(reports), out, choose_device(device)
    )
    with complete_or_absent(out / "verdicts.csv") as temporary:
        judged.verdicts.to_csv(temporary, index=False)
    print("\n".join(judged.sentences))
    print(f"\n{judging.printed(judged.verdicts)}\n\nAll is in {out}.")
    return 0 if judged.verdicts["accuracy"].notna().any() else 1


if __name__ == "__main__":
    raise SystemExit(main())
