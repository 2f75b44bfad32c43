"""What both sides of the wire share: settings, adapters, codec, algebra, results."""

__version__ = "0.1.0"
