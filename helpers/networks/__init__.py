"""Networks: ResNets of any width and stem, weights read safely, outputs of layers."""


class Undefined(ValueError):
    """The reason why a value cannot be had of a network or of images.

    It stands beside the NaN in tables. Any other error stops what computes the value.
    """
