"""Command line that predicts the test accuracy of checkpoints.

``python -m helpers.checkpoints CHECKPOINTS IMAGES``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DESCRIPTION = """Predict the test accuracy of checkpoints from their training images,
as studies of this repository do, with an interval. Nothing is trained, no test image
is needed, and no code from a checkpoint is run."""
# Options in the order of --help, with the arguments of argparse's add_argument.
OPTIONS: dict[str, dict[str, Any]] = {
    "--labelled": {
        "type": Path,
        "help": "folder or .zip of held-out images with labels; 50 or more help much",
    },
    "--architecture": {
        "default": "auto",
        "help": "torchvision's name, timm:NAME or module:function; auto recognises "
        "torchvision's ResNets",
    },
    "--part": {
        "default": "",
        "help": "which network of a file that holds several, such as student",
    },
    "--classes": {
        "type": Path,
        "help": "text file with the name of a class per line, in the order of the "
        "outputs",
    },
    "--image-size": {
        "type": int,
        "default": 0,
        "help": "side of the square images, pixels; 0: that of the files, 224 at most",
    },
    "--resize": {
        "type": int,
        "default": 0,
        "help": "shorter side before the cut, as torchvision's Resize, pixels; "
        "0: images are squashed to squares",
    },
    "--crop": {
        "type": int,
        "default": 0,
        "help": "side of what is cut from the middle, as torchvision's CenterCrop, "
        "pixels; 0: as --resize",
    },
    "--images-used": {
        "type": int,
        "default": 0,
        "help": "training images to take; 0: as many as the study (fewer are less "
        "certain)",
    },
    "--images-per-class": {
        "type": int,
        "default": 0,
        "help": "images of a class that the networks were trained on, where IMAGES "
        "holds only some of them; 0: as many as there are",
    },
    "--mean": {
        "type": float,
        "nargs": 3,
        "default": [0.485, 0.456, 0.406],
        "help": "of the normalisation in training, RGB in [0, 1]",
    },
    "--std": {
        "type": float,
        "nargs": 3,
        "default": [0.229, 0.224, 0.225],
        "help": "of the normalisation in training",
    },
    "--study": {
        "default": "",
        "help": "study under --reports that calibrates, several joined by +; none: "
        "kinds20+filled20+kinds24",
    },
    "--reports": {
        "default": "reports",
        "help": "folder of the studies' reports, relative to the project's root",
    },
    "--device": {"default": "auto", "help": "cpu, cuda or auto"},
    "--jobs": {
        "type": int,
        "default": 0,
        "help": "checkpoints scored side by side; 0: one per core, or one on a GPU",
    },
    "--out": {
        "type": Path,
        "default": Path("own"),
        "help": "folder for tables and what is computed (default ./own)",
    },
}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    command_line = argparse.ArgumentParser(
        prog="python -m helpers.checkpoints", description=DESCRIPTION
    )
    command_line.add_argument(
        "checkpoints",
        type=Path,
        help="folder of .safetensors, .pt, .pth, .ckpt, .bin or .pth.tar files with "
        "state dicts, or one such file",
    )
    command_line.add_argument(
        "images",
        type=Path,
        help="folder or .zip of the training images, such as a folder per class",
    )
    for name, option in OPTIONS.items():
        command_line.add_argument(name, **option)
    return command_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 when a checkpoint was judged, 1 when none could be, 2 when an argument is
        wrong, 130 when interrupted.
    """
    options = parser().parse_args(arguments)
    try:
        return _judge(options)
    except (ValueError, OSError) as fault:
        print(f"{parser().prog}: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"{parser().prog}: interrupted; what is complete in {options.out} is kept",
            file=sys.stderr,
        )
        return 130


def _check_places(options: argparse.Namespace) -> None:
    """Refuse a folder or file that is not there, before seconds of imports."""
    places = {
        "CHECKPOINTS": options.checkpoints,
        "IMAGES": options.images,
        "--labelled": options.labelled,
        "--classes": options.classes,
    }
    for name, path in places.items():
        if path is not None and not path.exists():
            raise FileNotFoundError(
                f"{name} is {path}, which does not exist; name the place of yours"
            )


def _judge(options: argparse.Namespace) -> int:
    _check_places(options)
    # Imported here, since torch takes seconds to import and --help does not need it.
    from helpers.checkpoints import case
    from helpers.checkpoints.images import Preparation
    from helpers.checkpoints.load import Reading
    from helpers.files import from_root
    from helpers.training.pool import choose_device

    # First of all, so that nothing is computed that cannot be written.
    options.out.mkdir(parents=True, exist_ok=True)
    labelled = options.labelled and options.labelled.absolute()
    inputs = case.Inputs(
        checkpoints=options.checkpoints.absolute(),
        images=options.images.absolute(),
        labelled=labelled,
        class_names=_lines(options.classes),
        most=options.images_used,
        class_images=options.images_per_class,
    )
    place = case.Place(
        reports=from_root(options.reports),
        work=options.out.absolute(),
        study=options.study,
        device=choose_device(options.device),
        jobs=options.jobs,
    )
    preparation = Preparation(
        side=options.image_size,
        resize=options.resize,
        crop=options.crop,
        mean=tuple(options.mean),
        std=tuple(options.std),
    )
    reading = Reading(options.architecture, options.part)
    judged = case.of_files(inputs, place, reading, preparation)
    _write(judged, options.out)
    _print(judged, options.out)
    is_judged = judged.verdicts[["accuracy", "rank"]].notna().any(axis=None)
    return 0 if is_judged else 1


def _lines(path: Path | None) -> list[str]:
    """Lines of a text file, stripped, without empty ones; none without a file."""
    if path is None:
        return []
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return [line.strip() for line in lines if line.strip()]


def _write(judged: Any, folder: Path) -> None:
    from helpers.files import complete_or_absent

    texts = {
        "verdicts.csv": judged.verdicts.to_csv(index=False),
        "scores.csv": judged.scores.to_csv(index=False),
        "README.md": "\n\n".join(judged.sentences) + "\n",
    }
    for name, text in texts.items():
        with complete_or_absent(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def _print(judged: Any, folder: Path) -> None:
    from helpers.checkpoints import report
    from helpers.checkpoints.judging import NOT_READ

    print("\n".join(judged.sentences))
    readable = judged.verdicts[judged.verdicts["verdict"].ne(NOT_READ)]
    if len(readable):
        print(f"\n{report.printed(readable)}\n\nIts tables are in {folder}.")


if __name__ == "__main__":
    raise SystemExit(main())
