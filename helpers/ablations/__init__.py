"""Overlap of maps and boxes under other choices: map, threshold, layer, class, size."""
