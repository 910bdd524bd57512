"""Images and boxes: the layouts on disk, decoded once into one table and one set of images."""

from helpers import face

FACE = {
    "dataset": ["fault_counts"],
    "manifest": ["choose_images", "of_study", "with_classes"],
}
__getattr__ = face(__name__, FACE)
