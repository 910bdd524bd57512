"""A study's report as a whole: its pages, the list of its files with their digests, and what was changed since it was published."""

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from helpers.files import write_json
from helpers.sweep import publication
from helpers.sweep.executions import Places, digest_of
from helpers.sweep.study_file import Execution

_LISTING = "published.json"  # in the folder of a report; a variant of the study has one of its own


def publish_pages(executions: Sequence[Execution], places: Places) -> Path:
    """Write the pages of a report and the list of its files, unless they show just these executions already; give its index."""
    reports = places.reports(executions[0])
    own = [item for item in executions if places.record(item).is_file()]  # what a variant shares with the main report has none here
    shared = [item.notebook.stem for item in executions if item not in own and not item.part]
    from helpers.report import pages

    told = publication.digest_of_file(reports / pages.FINDINGS)
    state = digest_of([{item.name: publication.readable(places.record(item)) for item in own}, shared, told])
    written = _remembered(places, executions[0])
    if written.get("state") == state and _page_digests(reports, written["pages"]) == written["pages"]:
        pages.say_changed(reports, [])
        return reports / "index.html"
    known: dict[str, Any] = {"study": places.study, "shared": shared}
    known["notebooks"] = [item.notebook.stem for item in own if not item.part]
    known["parameters"] = {item.notebook.stem: item.parameters for item in executions if not item.part}
    write_json(reports / _LISTING, known)
    made = pages.inner_pages(reports)
    write_json(reports / _LISTING, known | {"files": _files(own, places) | publication.digests(made, reports)})
    index = pages.study_page(reports, known["notebooks"])
    names = [os.path.relpath(path, reports) for path in [*made, index, reports / _LISTING]]
    write_json(_written(places, executions[0]), {"state": state, "pages": _page_digests(reports, names)})
    if places.variant:
        _beside_variants(executions, Places(places.root, places.study))
    return index


def _beside_variants(executions: Sequence[Execution], main: Places) -> None:
    """Write the index of the main report anew, for it shows all variants beside it; not where files of it were changed, which is told."""
    from helpers.report import pages

    execution = executions[0]
    reports, written = main.reports(execution), _remembered(main, execution)
    files = _files([item for item in executions if main.record(item).is_file()], main)
    if changed := [name for name, digest in files.items() if publication.digest_of_file(reports / name) != digest]:
        _written(main, execution).unlink(missing_ok=True)  # so that its next start writes the pages anew
        print(f"the main report does not show it yet, since it was changed: {', '.join(changed)}; run the study again without --as")
        return
    if written and (reports / "index.html").is_file():
        pages.study_page(reports, [path.stem for path in pages.executed_notebooks(reports)])
        pages_now = written["pages"] | _page_digests(reports, ["index.html"])
        write_json(_written(main, execution), written | {"pages": pages_now})


def _written(places: Places, execution: Execution) -> Path:
    return places.work(execution) / "pages" / f"{places.variant or 'main'}.json"


def _remembered(places: Places, execution: Execution) -> dict[str, Any]:
    """Read which executions the pages show, and the digest of each page; empty where that is not known."""
    found = publication.readable(_written(places, execution))
    return found if isinstance(found.get("pages"), dict) else {}


def _files(executions: Sequence[Execution], places: Places) -> dict[str, str]:
    """Digests of all that complete executions published, by names from the folder of the report."""
    found = {}
    for item in executions:
        folder, reports = places.report(item).parent, places.reports(item)
        for name, digest in publication.readable(places.record(item), items={"published": dict}).get("published", {}).items():
            found[os.path.relpath(folder / name, reports)] = digest
    return dict(sorted(found.items()))


def changed_files(executions: Sequence[Execution], places: Places) -> list[str]:
    """List the published files that are no longer as they were published, each with what became of it.

    Records know it while the folder of work is there; a report that was sent alone has its list.
    """
    reports = places.reports(executions[0])
    listed = _files([item for item in executions if places.record(item).is_file()], places)
    if not listed:
        found = publication.readable(reports / _LISTING).get("files")
        listed = found if isinstance(found, dict) else {}
    now = {name: publication.digest_of_file(reports / name) for name in listed}
    pages = _remembered(places, executions[0]).get("pages", {})
    both = listed | pages
    now |= _page_digests(reports, pages)
    return [f"{name} ({publication.fate(reports / name)})" for name, digest in both.items() if now[name] != digest]


def say_changes(executions: Sequence[Execution], places: Places) -> list[str]:
    """List what was changed since it was published, and say it on the index of the report."""
    found, reports = changed_files(executions, places), places.reports(executions[0])
    if (reports / "index.html").is_file():
        from helpers.report import pages  # late: it loads templates

        try:
            pages.say_changed(reports, found)
        except (OSError, ValueError):
            return found  # an index that cannot be read or written; the terminal says it all the same
    return found


def _page_digests(reports: Path, names: Iterable[str]) -> dict[str, str]:
    """Digest pages without the note that says what was changed; "" stands for one that is not there."""
    found = {}
    for name in names:
        try:
            content = (reports / name).read_bytes()
        except OSError:
            found[name] = ""
            continue
        start, end = content.find(b"<!--changed-->"), content.find(b"<!--/changed-->")
        content = content[:start] + b"<!--changed-->" + content[end:] if 0 <= start < end else content
        found[name] = blake2b(content, digest_size=8).hexdigest()
    return found
