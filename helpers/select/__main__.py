"""Which of several checkpoints will do best, and how accurate it will be: ``python -m helpers.select CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """Predict the test accuracy of checkpoints from their training images, as a study of this repository does, with an interval.
Nothing is trained, no test image is needed, and no code from a checkpoint is run."""


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(
        prog="python -m helpers.select", description=DESCRIPTION
    )
    add = made.add_argument
    add(
        "checkpoints",
        type=Path,
        help="folder of .safetensors, .pt, .pth, .ckpt or .bin files with state dicts, or one such file",
    )
    add(
        "images",
        type=Path,
        help="folder or .zip of the training images, such as a folder per class",
    )
    add(
        "--labelled",
        type=Path,
        help="folder or .zip of held-out images with labels; 50 or more help much",
    )
    add(
        "--architecture",
        default="auto",
        help="torchvision's name, timm:NAME or module:function; auto tells ResNets apart",
    )
    add(
        "--classes",
        type=Path,
        help="text file with the name of a class per line, in the order of the outputs",
    )
    add(
        "--image-size",
        type=int,
        default=0,
        help="side of the square images, pixels; 0: that of the files, 224 at most",
    )
    add(
        "--images-used",
        type=int,
        default=0,
        help="training images to take; 0: as many as the study (fewer are less sure)",
    )
    add(
        "--mean",
        type=float,
        nargs=3,
        default=[0.485, 0.456, 0.406],
        help="of the normalisation in training, RGB in [0, 1]",
    )
    add(
        "--std",
        type=float,
        nargs=3,
        default=[0.229, 0.224, 0.225],
        help="of the normalisation in training",
    )
    add(
        "--study",
        default="",
        help="study under --reports that calibrates; none: compact20",
    )
    add(
        "--reports",
        default="reports",
        help="folder of the studies' reports, relative to the project's root",
    )
    add("--device", default="auto", help="cpu, cuda or auto")
    add(
        "--jobs",
        type=int,
        default=0,
        help="checkpoints scored side by side; 0: one per core, or one on a GPU",
    )
    add(
        "--out",
        type=Path,
        default=Path("own"),
        help="folder for tables and what is computed (default ./own)",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 when a checkpoint was judged, 1 when none could be, 2 when an argument is wrong, 130 when interrupted."""
    given = parser().parse_args(arguments)
    try:
        return _judge(given)
    except (ValueError, OSError) as fault:
        print(f"{parser().prog}: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"{parser().prog}: interrupted; what is complete in {given.out} is kept",
            file=sys.stderr,
        )
        return 130


def _judge(given: argparse.Namespace) -> int:
    from helpers.files import (
        complete_or_absent,
        from_root,
    )  # here: torch and scikit-learn take seconds, and --help waits for none
    from helpers.select import case, report
    from helpers.select.judging import NOT_READ
    from helpers.training.pool import choose_device

    given.out.mkdir(
        parents=True, exist_ok=True
    )  # before the work, so that nothing is computed that cannot be written
    classes = (
        given.classes.read_text(encoding="utf-8-sig").split("\n")
        if given.classes
        else []
    )
    found = case.of_files(
        given.checkpoints.absolute(),
        given.images.absolute(),
        reports=from_root(given.reports),
        work=given.out.absolute(),
        study=given.study,
        labelled=given.labelled and given.labelled.absolute(),
        architecture=given.architecture,
        class_names=[line.strip() for line in classes if line.strip()],
        size=given.image_size,
        most=given.images_used,
        normalisation=(given.mean, given.std),
        device=choose_device(given.device),
        jobs=given.jobs,
    )
    tables = {
        f"{name}.csv": getattr(found, name).to_csv(index=False)
        for name in ("verdicts", "scores")
    }
    for name, text in (
        tables | {"README.md": "\n\n".join(found.sentences) + "\n"}
    ).items():
        with complete_or_absent(given.out / name) as temporary:
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    print("\n".join(found.sentences))
    shown = found.verdicts[found.verdicts["verdict"].ne(NOT_READ)]
    print(
        f"\n{report.printed(shown)}\n\nIts tables are in {given.out}."
        if len(shown)
        else ""
    )
    return 0 if found.verdicts[["accuracy", "rank"]].notna().any(axis=None) else 1


if __name__ == "__main__":
    raise SystemExit(main())
