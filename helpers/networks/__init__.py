"""Networks: ResNets of any width and stem, weights read safely, outputs of layers."""
