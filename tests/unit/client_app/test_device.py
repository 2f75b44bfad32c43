import pytest
import torch

from client_app.device import describe_device, device_for, resolve_device
from fedapp.config import RunConfig
from fedapp.errors import ConfigError, DeviceError


@pytest.fixture
def gpus(monkeypatch):
    def set_count(count, cuda="13.0"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.version, "cuda", cuda)

    return set_count


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "cpu", "cpu"),
        (2, "auto", "cuda:0"),
        (2, "cuda", "cuda:0"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_the_device_asked_for(gpus, count, name, expected):
    gpus(count)
    assert resolve_device(name) == torch.device(expected)


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_an_absent_gpu_is_an_error_that_says_why(gpus, name):
    gpus(0)
    with pytest.raises(DeviceError, match=f"'{name}' but no GPU.*no working driver") as caught:
        resolve_device(name)
    assert "--federation-config 'client-resources-num-gpus=1.0'" in str(caught.value)
    assert caught.value.exit_code == 2
    gpus(0, cuda=None)
    with pytest.raises(DeviceError, match="built for CPUs only"):
        resolve_device(name)


def test_a_gpu_beyond_the_last_names_what_there_is(gpus):
    gpus(2)
    with pytest.raises(DeviceError, match=r"'cuda:2'.*has 2 GPU\(s\), cuda:0 to cuda:1"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "mps", "", "cuda:-1", "cpu:0"])
def test_other_names_are_refused(gpus, name):
    gpus(4)
    with pytest.raises(ConfigError, match="expected auto, cpu, cuda or cuda:N"):
        resolve_device(name)


@pytest.mark.parametrize(
    "change", [{"train.precision": "bf16"}, {"model.quantization": "4bit"}], ids=str
)
def test_what_needs_cuda_is_refused_on_a_cpu(gpus, change):
    gpus(0)
    (key,) = change
    with pytest.raises(DeviceError, match=f"{key} is '.*needs a CUDA device"):
        device_for(RunConfig.from_flat(change))


def test_the_line_about_the_device_names_the_threads():
    assert describe_device(torch.device("cpu")) == f"cpu, {torch.get_num_threads()} threads"
