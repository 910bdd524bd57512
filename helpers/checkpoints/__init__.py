"""Checkpoints of one's own: which will do best, and how accurate it will be."""
