"""Which of several checkpoints will do best, and how accurate it will be: ``python -m helpers.select CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """Predict the test accuracy of checkpoints from their training images, as a study of this repository does, with an interval.
Nothing is trained, no test image is needed, and no code from a checkpoint is run."""


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    made = argparse.ArgumentParser(prog="python -m helpers.select", description=DESCRIPTION)
    add = made.add_argument
    add("checkpoints", type=Path, help="folder of .safetensors, .pt, .pth, .ckpt or .bin files with state dicts, or one such file")
    add("images", type=Path, help="folder or .zip of the training images, such as a folder per class")
    add("--labelled", type=Path, help="folder or .zip of held-out images with labels; 50 or more help much")
    add("--target", type=Path, help="folder or .zip of images without labels of where the networks will work")
    add("--architecture", default="auto", help="torchvision's name, timm:NAME or module:function; auto tells ResNets apart")
    add("--classes", type=Path, help="text file with the name of a class per line, in the order of the outputs")
    add("--image-size", type=int, default=0, help="side of the square images, pixels; 0: that of the files, 224 at most")
    add("--images-used", type=int, default=0, help="training images to take; 0: as many as the study (fewer are less sure)")
    add("--mean", type=float, nargs=3, default=[0.485, 0.456, 0.406], help="of the normalisation in training, RGB in [0, 1]")
    add("--std", type=float, nargs=3, default=[0.229, 0.224, 0.225], help="of the normalisation in training")
    add("--study", default="", help="study under --reports that calibrates; none: compact20")
    add("--reports", default="reports", help="folder of the studies' reports, relative to the project's root")
    add("--device", default="auto", help="cpu, cuda or auto")
    add("--jobs", type=int, default=0, help="checkpoints scored side by side; 0: one per core, or one on a GPU")
    add("--out", type=Path, default=Path("own"), help="folder for tables and cards, and what is computed (default ./own)")
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
        print(f"{parser().prog}: interrupted; what is complete in {given.out} is kept", file=sys.stderr)
        return 130


def _judge(given: argparse.Namespace) -> int:
    from helpers.files import complete_or_absent, from_root
    from helpers.select import case, report
    from helpers.select.judging import NOT_READ
    from helpers.training.pool import choose_device

    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)  # before the work, so that nothing is computed that cannot be written
    classes = given.classes.read_text(encoding="utf-8-sig").split("\n") if given.classes else []
    found = case.of_files(
        given.checkpoints.absolute(),
        given.images.absolute(),
        reports=from_root(given.reports),
        work=out,
        study=given.study,
        labelled=given.labelled and given.labelled.absolute(),
        target=given.target and given.target.absolute(),
        architecture=given.architecture,
        class_names=[line.strip() for line in classes if line.strip()],
        size=given.image_size,
        most=given.images_used,
        normalisation=(given.mean, given.std),
        device=choose_device(given.device),
        jobs=given.jobs,
    )
    for name in ("verdicts", "scores", "target"):
        if (table := getattr(found, name)) is not None:
            with complete_or_absent(out / f"{name}.csv") as temporary:
                table.to_csv(temporary, index=False, errors="backslashreplace")
    with complete_or_absent(out / "README.md") as temporary:
        temporary.write_text("\n\n".join(found.sentences) + "\n", encoding="utf-8", errors="backslashreplace")
    report.write_cards(out / "cards", found.verdicts, found.facts.set_index("checkpoint")["model_id"], found.basis)
    print("\n".join(found.sentences))
    shown = found.verdicts[found.verdicts["verdict"].ne(NOT_READ)]
    print(f"\n{report.printed(shown)}\n\nTables and cards are in {given.out}." if len(shown) else "")
    return 0 if found.verdicts[["accuracy", "rank"]].notna().any(axis=None) else 1
