"""Images and boxes: the layouts on disk, decoded once into one table and one set of images."""

from helpers import face

FACE = {
    "dataset": ["fault_counts", "load_study_data"],
}
__getattr__ = face(__name__, FACE)
