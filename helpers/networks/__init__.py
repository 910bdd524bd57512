"""Networks: the ResNet of any width and stem, weights read safely, and a look at what layers put out."""
