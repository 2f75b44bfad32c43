"""Local rules: what a method changes in the common training loop."""
