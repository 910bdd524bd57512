"""Images and boxes: sources in the published layouts, decoded once to squares; rendered scenes; shifted copies."""
