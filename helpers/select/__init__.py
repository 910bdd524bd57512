"""Checkpoints of one's own: which will do best on images like those they were trained on, and how accurate it will be."""
