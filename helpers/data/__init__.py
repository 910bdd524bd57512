"""Images and boxes: sources in any layout, decoded to squares; scenes; shifts."""
