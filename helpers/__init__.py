"""Which image classifiers will generalize, and by how much accuracy will drop: one module per concept of the field."""
