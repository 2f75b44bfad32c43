"""Models built here from a seed, for tests and dry runs; never for claims about quality."""

from client_app.tiny_models.decoder import tiny_decoder
from client_app.tiny_models.encoder import tiny_encoder
from client_app.tiny_models.images import conv4, tiny_cnn, tiny_unet

__all__ = ["conv4", "tiny_cnn", "tiny_decoder", "tiny_encoder", "tiny_unet"]
