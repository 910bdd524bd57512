"""Pages, findings, picture and records of a report: ``python -m helpers.report``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.files import PROJECT_ROOT, RECORDS, inside
from helpers.report import findings, opening, pages
from helpers.study_files import read_blocks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command on a study's report.

    Returns:
        0; 1 where FINDINGS.md differs from what the tables give, or records are
        refused; 2 where the report is missing or damaged.
    """
    options = _parser().parse_args(arguments)
    folder = Path(options.study)
    try:
        folder = inside(options.reports, options.study)
        if options.what != "records" and not (folder / "story").is_dir():
            raise FileNotFoundError(f"{folder} holds no report; run the study first")
        return _ACTIONS[options.what](folder, options)
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
    except (AttributeError, KeyError, TypeError) as fault:
        print(
            f"a table or story of {folder} lacks what its pages say ({fault!r}); take "
            f"it from the repository again",
            file=sys.stderr,
        )
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m helpers.report",
        description="Pages, findings, picture and records of a study's report.",
    )
    parser.add_argument("what", choices=list(_ACTIONS))
    parser.add_argument("study", help="compare: the first of the studies")
    parser.add_argument("others", nargs="*", help="compare: the other studies")
    parser.add_argument(
        "--write",
        action="store_true",
        help="findings: write the page in place of checking it",
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="share: with the networks' weights"
    )
    parser.add_argument(
        "--equal-architectures",
        action="store_true",
        help="compare: predict from equally many networks of each architecture",
    )
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    parser.add_argument(
        "--work", type=Path, default=PROJECT_ROOT / "work", help="records: their source"
    )
    return parser


def _pages(folder: Path, options: argparse.Namespace) -> int:
    print(f"wrote {pages.write(folder)} and the pages that it links to")
    return 0


def _compare(folder: Path, options: argparse.Namespace) -> int:
    from helpers.report import comparison

    names = [folder.name, *options.others]
    print(comparison.write(options.reports, names, options.equal_architectures))
    return 0


def _picture(folder: Path, options: argparse.Namespace) -> int:
    message = f"{folder} has no maps and scores to draw its picture from"
    if opening.write(folder):
        message = f"{folder / opening.WIDE} and {opening.NARROW} show its maps"
    print(message)
    return 0


def _share(folder: Path, options: argparse.Namespace) -> int:
    target = PROJECT_ROOT / "work/share" / f"{folder.name}.zip"
    packed = pages.share(folder, target, checkpoints=options.checkpoints)
    size = packed.stat().st_size / 1e6
    print(
        f"{packed}, {size:.1f} MB: unpack it anywhere and open {folder.name}/index.html"
    )
    return 0


def _findings(folder: Path, options: argparse.Namespace) -> int:
    differences = []
    if "catalogue" not in findings.read(folder):
        message = (
            f"the study {folder.name} trains no networks, so it has no "
            f"{findings.PAGE}; its answer is that of its index.html"
        )
    elif options.write:
        message = f"wrote {findings.write(folder)}"
    elif not (folder / findings.PAGE).is_file():
        message = f"the study {folder.name} has no {findings.PAGE}; --write makes it"
    else:
        differences = findings.differences(folder)
        message = "\n".join(differences) or (
            f"every number in {findings.PAGE} of {folder.name} is what the tables give"
        )
    print(message)
    return int(bool(differences))


def _records(folder: Path, options: argparse.Namespace) -> int:
    """Publish a study's folder of work as records; 1 where a file is refused."""
    from helpers.scoring import records

    study = options.study
    path = PROJECT_ROOT / "params" / f"{study}.yaml"
    if path.is_file():  # a study may share the runs of the one that it extends
        study = read_blocks(path)["work_study"]
    source = inside(options.work, study)
    published = records.publish(source, inside(options.reports, study) / RECORDS)
    print("\n".join([str(published), *published.refused]))
    return int(bool(published.refused))


_ACTIONS = {
    "pages": _pages,
    "compare": _compare,
    "findings": _findings,
    "share": _share,
    "records": _records,
    "picture": _picture,
}

if __name__ == "__main__":
    sys.exit(main())
