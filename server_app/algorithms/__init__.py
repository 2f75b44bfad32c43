"""Server halves of the algorithms, one file each."""
