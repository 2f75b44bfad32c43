"""Networks for images, as folders with a config.json and a safetensors file."""

from client_app.image_nets.base import ImageNet
from client_app.image_nets.files import build_net, load_net, read_net, save_net

__all__ = ["ImageNet", "build_net", "load_net", "read_net", "save_net"]
