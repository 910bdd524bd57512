"""Command line: ``python -m helpers.checkpoints CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DESCRIPTION = """Predict the test accuracy of checkpoints from their training images,
by the rule of this repository's studies. Nothing is trained, no test image is needed,
and no code from a checkpoint is run."""
# Options in the order of --help, with the arguments of argparse's add_argument.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--labelled": {"type": Path, "help": "held-out images with labels, 50 or more"},
    "--unlabelled": {"type": Path, "help": "images without labels, to order networks"},
    "--architecture": {
        "default": "auto",
        "help": "a name of torchvision or timm, or module:function; auto recognises "
        "torchvision's ResNets",
    },
    "--classes": {
        "type": Path,
        "help": "text file with a class a line, in the order of the outputs; "
        "sorted without it",
    },
    "--image-size": {
        "type": int,
        "help": "side of the images in training, pixels; without it the usual size "
        "with the highest training accuracy",
    },
    "--mean": {"type": float, "nargs": 3, "help": "of the normalisation, RGB, 0 to 1"},
    "--std": {"type": float, "nargs": 3, "help": "of the normalisation, RGB, 0 to 1"},
    "--images-per-class": {
        "type": float,
        "default": 0.0,
        "help": "in training, where IMAGES holds only some of them",
    },
    "--reports": {"default": "reports", "help": "of the studies that calibrate"},
    "--device": {"default": "auto", "help": "cpu, cuda or auto"},
    "--out": {"type": Path, "default": Path("own"), "help": "folder for verdicts.csv"},
}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    command = argparse.ArgumentParser(
        prog="python -m helpers.checkpoints", description=_DESCRIPTION
    )
    command.add_argument(
        "checkpoints", type=Path, help="folder of .safetensors, .pt or .pth; or a file"
    )
    command.add_argument(
        "images", type=Path, help="folder or .zip of training images, a folder a class"
    )
    for name, option in _OPTIONS.items():
        command.add_argument(name, **option)
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 when a checkpoint was judged, 1 when none could be, 2 when an argument is
        wrong.
    """
    options = parser().parse_args(arguments)
    try:
        return _judge(options)
    except (ValueError, OSError) as fault:
        print(f"{parser().prog}: {fault}", file=sys.stderr)
        return 2


def _judge(options: argparse.Namespace) -> int:
    if (options.mean is None) != (options.std is None):
        raise ValueError("--mean and --std belong together; give both or none")
    # Imported here, since torch takes seconds to import and --help does not need it.
    from helpers.checkpoints import judging
    from helpers.files import complete_or_absent, from_root
    from helpers.training.pool import choose_device

    given: dict[str, Any] = {}
    if options.classes:
        lines = options.classes.read_text(encoding="utf-8-sig").splitlines()
        given["classes"] = [line.strip() for line in lines if line.strip()]
    if options.image_size:
        given["sides"] = [options.image_size]
    if options.mean:
        given["normalisations"] = [(tuple(options.mean), tuple(options.std))]
    inputs = judging.Inputs(
        checkpoints=options.checkpoints,
        images=options.images,
        labelled=options.labelled,
        unlabelled=options.unlabelled,
        architecture=options.architecture,
        class_images=options.images_per_class,
        **given,
    )
    device = choose_device(options.device)
    judged = judging.judge(inputs, from_root(options.reports), options.out, device)
    with complete_or_absent(options.out / "verdicts.csv") as temporary:
        judged.verdicts.to_csv(temporary, index=False)
    print("\n".join(judged.sentences))
    print(f"\n{judging.printed(judged.verdicts)}\n\nAll is in {options.out}.")
    return 0 if judged.verdicts["accuracy"].notna().any() else 1


if __name__ == "__main__":
    raise SystemExit(main())
