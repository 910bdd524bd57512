"""What readers see.

A notebook's figures, tables and sentences, a study's pages and findings, and explorers.
"""
