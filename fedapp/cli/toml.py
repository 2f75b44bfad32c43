"""TOML as the command line writes it: `fedapp.toml`."""

from fedapp.toml import lines, literal

__all__ = ["lines", "literal"]
