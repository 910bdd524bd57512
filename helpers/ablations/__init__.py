"""Does the overlap go with the gap under other choices too: of map, threshold, layer, class, image size and kind of box."""
