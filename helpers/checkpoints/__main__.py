"""Command line: ``python -m helpers.checkpoints CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.checkpoints import judging
from helpers.files import complete_or_absent, from_root

_DESCRIPTION = """Predict the test accuracy of checkpoints from their training images,
by the rule of this repository's studies. Nothing is trained, no test image is needed,
and no code from a checkpoint is run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: of the command line; None takes those of the process.

    Returns:
        0 when a checkpoint was judged, 1 when none could be, 2 when an argument is
        wrong.
    """
    parser = argparse.ArgumentParser(
        "python -m helpers.checkpoints",
        description=_DESCRIPTION,
        fromfile_prefix_chars="@",
    )
    for name, item in judging.Inputs.model_fields.items():
        flag = name if item.is_required() else f"--{name.replace('_', '-')}"
        several = "+" if item.default == () else None
        parser.add_argument(
            flag, nargs=several, default=item.default, help=item.description
        )
    parser.add_argument(
        "--reports", default="reports", help="of studies that calibrate"
    )
    parser.add_argument("--out", default="own", help="folder for verdicts.csv")
    given = vars(parser.parse_args(arguments))
    reports, out = from_root(given.pop("reports")), Path(given.pop("out"))
    try:
        judged = judging.judge(judging.Inputs(**given), reports, out)
    except (ValueError, OSError) as fault:
        print(f"{parser.prog}: {fault}", file=sys.stderr)
        return 2
    with complete_or_absent(out / "verdicts.csv") as temporary:
        judged.verdicts.to_csv(temporary, index=False)
    print("\n".join(judged.sentences))
    print(f"\n{judging.printed(judged.verdicts)}\n\nAll is in {out}.")
    return 0 if judged.verdicts["accuracy"].notna().any() else 1


if __name__ == "__main__":
    raise SystemExit(main())
