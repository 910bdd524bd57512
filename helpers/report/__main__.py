"""Pages and findings of a report, and its records: ``python -m helpers.report pages STUDY``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from helpers.files import PROJECT_ROOT, RECORDS, inside
from helpers.parameters import read_blocks
from helpers.report import findings, pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is asked with a study's report; 1 where a number in FINDINGS.md is not what the tables give, 2 without a report."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.report",
        description="Pages, findings and records of a study's report.",
    )
    parser.add_argument("what", choices=["pages", "findings", "share", "records"])
    parser.add_argument("study")
    parser.add_argument(
        "--write",
        action="store_true",
        help="findings: write the page in place of checking it",
    )
    parser.add_argument(
        "--checkpoints", action="store_true", help="share: with the networks' weights"
    )
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    parser.add_argument(
        "--work", type=Path, default=PROJECT_ROOT / "work", help="records: their source"
    )
    given, differing = parser.parse_args(arguments), []
    try:
        folder = inside(given.reports, given.study)
        if given.what == "records":
            return _publish_records(given.work, given.reports, given.study)
        if not (folder / "story").is_dir():
            raise FileNotFoundError(f"{folder} holds no report; run the study first")
        if given.what == "pages":
            told = f"wrote {pages.write(folder)} and the pages that it links to"
        elif given.what == "share":
            packed = pages.share(
                folder,
                PROJECT_ROOT / "work/share" / f"{folder.name}.zip",
                checkpoints=given.checkpoints,
            )
            told = f"{packed}, {packed.stat().st_size / 1e6:.1f} MB: unpack it anywhere and open {folder.name}/index.html"
        elif "catalogue" not in findings.read(folder):
            told = f"the study {folder.name} trains no networks, so it has no {findings.PAGE}; its answer is that of its index.html"
        elif given.write:
            told = f"wrote {findings.write(folder)}"
        elif not (folder / findings.PAGE).is_file():
            told = f"the study {folder.name} has no {findings.PAGE}; --write makes it"
        else:
            differing = findings.differences(folder)
            told = (
                "\n".join(differing)
                or f"every number in {findings.PAGE} of {folder.name} is what the tables give"
            )
        print(told)
        return int(bool(differing))
    except (OSError, ValueError) as fault:
        print(fault, file=sys.stderr)
    except (AttributeError, KeyError, TypeError) as fault:
        print(
            f"a table or story of {folder} lacks what its pages say ({fault!r}); take it from the repository again",
            file=sys.stderr,
        )
    return 2


def _publish_records(work: Path, reports: Path, study: str) -> int:
    """Publish what lies in a study's folder of work; 1 where something is refused."""
    from helpers.data import images
    from helpers.scoring import records

    path = PROJECT_ROOT / "params" / f"{study}.yaml"
    if path.is_file():  # a study may share the runs of the one that it extends
        study = read_blocks(path)["work_study"]
    source = inside(work, study)
    published = records.publish(
        source,
        inside(reports, study) / RECORDS,
        lambda place: images.write_labels(place, images.of_study(source)),
    )
    print("\n".join([str(published), *published.refused]))
    return int(bool(published.refused))


if __name__ == "__main__":
    sys.exit(main())
