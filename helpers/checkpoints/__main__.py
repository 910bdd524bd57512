"""Command line: ``python -m helpers.checkpoints CHECKPOINTS IMAGES``."""

import argparse
import sys
from collections.abc import Sequence

from helpers.checkpoints.inputs import Inputs
from helpers.checkpoints.judging import judge
from helpers.files import complete_or_absent
from helpers.parameters import filled

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
    name = "python -m helpers.checkpoints"
    parser = argparse.ArgumentParser(
        name, None, _DESCRIPTION, fromfile_prefix_chars="@"
    )
    for name, item in Inputs.model_fields.items():
        flag = name if item.is_required() else f"--{name.replace('_', '-')}"
        several = "+" if item.default == () else None
        parser.add_argument(
            flag, nargs=several, default=item.default, help=item.description
        )
    try:
        given = filled(Inputs, vars(parser.parse_args(arguments)))
        table, sentences = judge(given)
    except (ValueError, OSError) as fault:
        print(f"{parser.prog}: {fault}", file=sys.stderr)
        return 2
    with complete_or_absent(given.out / "verdicts.csv") as temporary:
        table.to_csv(temporary, index=False)
    shown = table.iloc[:, :6].dropna(axis=1, how="all")
    print("\n".join(sentences), shown.to_string(index=False, na_rep=""), sep="\n\n")
    print(f"\nAll is in {given.out}.")
    return 0 if table["accuracy"].notna().any() else 1


if __name__ == "__main__":
    raise SystemExit(main())
