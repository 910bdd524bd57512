"""An image of a source with its class, its split and its annotation."""

from typing import NamedTuple

from helpers.data.annotations import Annotation, Box
from helpers.data.sources import Fault


class Record(NamedTuple):
    """An image that a source lists."""

    name: str  # path inside the source
    class_id: str  # "" if not known
    split: str  # "train" or "test"
    annotation: Annotation | None = None  # None if the image has none
    # Bytes of the image, if it is part of a larger file; else empty.
    content: bytes = b""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """Annotated boxes, usable or not."""
        return self.annotation.boxes if self.annotation else ()

    def fault(self, kind: str, detail: str) -> Fault:
        """Make a fault of this image.

        Args:
            kind: name of the kind of fault, such as "missing_annotation".
            detail: the fault in words.
        """
        return Fault(self.name, kind, detail, self.class_id, self.split)


def first_label(annotation: Annotation | None) -> str:
    """Label of the first object of an annotation; "" if it has no object.

    Args:
        annotation: of one image; None if it has none.
    """
    if annotation and annotation.objects:
        label, _ = annotation.objects[0]
        return label
    return ""
