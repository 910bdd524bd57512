"""The order in which notebooks run, and whose results each reads."""

from collections.abc import Sequence

# Notebooks by number, in the order in which they run, each with the notebook whose
# outputs it reads.
READS_FROM = {
    "01": "",
    "02": "01",
    "03": "02",
    "04": "02",
    "08": "04",
    "05": "02",
    "06": "02",
    "07": "08",
    "09": "02",
    "10": "04",
    "11": "02",
}


def place(stem: str) -> int:
    """Position of a notebook in the order in which they run; unknown ones are last.

    Args:
        stem: name of a notebook.
    """
    order = list(READS_FROM)
    number = stem[:2]
    return order.index(number) if number in order else len(order)


def before(stem: str, stems: Sequence[str]) -> tuple[str, ...]:
    """The notebook whose outputs this one reads.

    If the study does not have that notebook, the one whose outputs that one reads, and
    so on; none if the study has none of them.

    Args:
        stem: name of a notebook.
        stems: names of the notebooks of the study.
    """
    numbers = {other[:2] for other in stems}
    number = READS_FROM.get(stem[:2])
    while number and number not in numbers:
        number = READS_FROM.get(number)
    return tuple(other for other in stems if other[:2] == number)


def notebooks_after(names: Sequence[str], stems: Sequence[str]) -> list[str]:
    """Notebooks that are executed after others, whose results they read.

    Args:
        names: of the others.
        stems: names of all notebooks of the study.

    Returns:
        Those that read results of ``names``, directly or through others, in order.
    """
    again = set(names)
    after = []
    for stem in sorted(stems, key=place):
        if stem not in again and again.intersection(before(stem, stems)):
            again.add(stem)
            after.append(stem)
    return after
