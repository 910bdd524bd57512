"""Numbers about a table of models; knows nothing else of the project."""
