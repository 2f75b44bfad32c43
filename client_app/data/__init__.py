"""Data sources, partitions and splits."""
