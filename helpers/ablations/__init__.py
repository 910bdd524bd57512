"""The overlap under other choices: of map, threshold, layer, class, size and box."""
