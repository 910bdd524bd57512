"""One image as a source lists it."""

from typing import NamedTuple

from helpers.data.annotations import Annotation, Box
from helpers.data.sources import Fault


class Record(NamedTuple):
    """One image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" where it is not known
    split: str  # "train" or "test"
    annotation: Annotation | str | None = None  # a text is what is wrong with it
    content: bytes = b""  # of the image, where it is no file of its own

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Boxes that are annotated, usable or not."""
        return getattr(self.annotation, "boxes", ())

    def fault(self, kind: str, detail: str) -> Fault:
        """Something of it that cannot be used.

        Args:
            kind: of fault.
            detail: in words.
        """
        return Fault(self.name, kind, detail, self.class_id, self.split)


def first_label(reading: Annotation | str | None) -> str:
    """Label of the first object of an annotation; "" where there is none.

    Args:
        reading: what is read of one image.
    """
    if isinstance(reading, Annotation) and reading.objects:
        return reading.objects[0][0]
    return ""
