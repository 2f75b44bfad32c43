"""A site on a GPU: the same training within the precision asked for."""

import numpy as np
import pytest
import torch
from torch import nn

from client_app.data import SiteData
from client_app.models import forget_models, load_resident
from client_app.site import LocalSite
from fedapp.config import RunConfig
from fedapp.exchange import Action, Instruction

pytestmark = pytest.mark.gpu


def train(site, **flat):
    """Return the change of the adapter in one round."""
    config = RunConfig.from_flat(
        {
            "model.source": "embedded:tiny-encoder",
            "model.max-length": 16,
            "lora.rank": 2,
            "train.batch-size": 4,
            "train.optimizer": "sgd",  # linear in the gradient, so that errors stay comparable
            "train.learning-rate": 0.05,
            **flat,
        }
    )
    for module in load_resident(config, site.data.label_map).model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the two devices would draw differently
    payloads = site.execute(Instruction(Action.INITIAL, "north", config)).payloads
    reply = site.execute(Instruction(Action.TRAIN, "north", config, 1, payloads=payloads))
    assert reply.failure is None, reply.failure
    start, end = (p["adapter"].unpack().arrays() for p in (payloads, reply.payloads))
    return np.concatenate([(b - a).ravel() for (_, a), (_, b) in zip(start, end, strict=True)])


@pytest.fixture
def site():
    records = [{"text": f"note {i} {'ill' * (i % 3)}", "label": i % 2} for i in range(24)]
    splits = {"train": records[:16], "validation": records[16:20], "test": records[20:]}
    yield LocalSite(SiteData("north", ["healthy", "ill"], splits))
    forget_models()  # those without dropout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("precision", "tf32", "tolerance"),
    [("fp32", False, 1e-4), ("fp32", True, 2e-2), ("bf16", True, 0.15)],
)
def test_cuda_trains_as_the_cpu_does(site, precision, tf32, tolerance):
    on_cpu = train(site, **{"train.device": "cpu"})
    on_cuda = train(
        site, **{"train.device": "cuda", "train.precision": precision, "train.tf32": tf32}
    )

    assert np.linalg.norm(on_cuda - on_cpu) <= tolerance * np.linalg.norm(on_cpu)
    assert torch.get_float32_matmul_precision() == "highest"
