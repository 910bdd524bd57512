"""Overlap of maps and boxes under other choices of map, threshold, layer and size."""
