"""Models built here from a seed, for tests and dry runs; never for claims about quality."""

from client_app.tiny_models.decoder import tiny_decoder
from client_app.tiny_models.encoder import tiny_encoder

__all__ = ["tiny_decoder", "tiny_encoder"]
