import pytest
import torch
from torch import nn

from client_app.peft_model import fresh_modules
from fedapp.errors import ConfigError


def make_model(unread=(), dtype=torch.float32):
    """A model whose parameters carry transformers' mark, except those below ``unread``."""
    model = nn.ModuleDict(
        {
            "body": nn.Linear(30, 30),
            "pooler": nn.Linear(4, 4),
            "classifier": nn.Linear(4, 2),
        }
    )
    for name, parameter in model.named_parameters():
        if not name.startswith(tuple(unread)):
            parameter._is_hf_initialized = True
    model.body.weight = nn.Parameter(model.body.weight.to(dtype), requires_grad=False)
    model.body.weight._is_hf_initialized = dtype == torch.float32
    return model


def test_only_what_the_checkpoint_lacks_outside_the_head_is_fresh():
    assert fresh_modules(make_model(["pooler", "classifier"]), ["classifier"]) == ["pooler"]
    assert fresh_modules(make_model(["classifier"]), ["classifier"]) == []


def test_a_model_without_marks_or_with_packed_weights_has_nothing_fresh():
    assert fresh_modules(nn.Sequential(nn.Linear(2, 2)), []) == []
    assert fresh_modules(make_model(["pooler"], torch.uint8), ["classifier"]) == []


def test_much_that_is_lacking_means_other_weights():
    model = make_model()
    for parameter in model.body.parameters():
        del parameter._is_hf_initialized
    with pytest.raises(ConfigError, match=r"lacks 2 arrays of the base model, such as 'body\."):
        fresh_modules(model, ["classifier"])
