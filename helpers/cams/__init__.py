"""Where a network looks: class activation maps, the masks they give, and their overlap with boxes."""

from helpers import face

FACE = {
    "object_masks": ["from_best_to_worst", "image_quality", "make_masks", "mask_quality"],
    "overlap": ["box_masks"],
}
__getattr__ = face(__name__, FACE)
