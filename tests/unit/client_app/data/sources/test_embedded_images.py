"""The images that `make images` brings, and what is said where they are not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from client_app.data import load_sites
from client_app.data.sources import digits, mni, read_table
from client_app.data.sources.mni import halve, read_volume
from client_app.data.sources.pinned import pinned_path
from fedapp.config import RunConfig
from fedapp.errors import DataError

TASKS = {"digits": "image-classification", "mni": "image-segmentation"}
WHEELS = {"digits": digits.WHEEL, "mni": mni.WHEEL}
needs_images = pytest.mark.skipif(
    not all(pinned_path(wheel).is_file() for wheel in WHEELS.values()),
    reason="needs the files of `make images`",
)


def config_of(name: str, **flat: object) -> RunConfig:
    settings = {"model.task": TASKS[name], "data.source": f"embedded:{name}", **flat}
    return RunConfig.from_flat(settings)  # type: ignore[arg-type]


@needs_images
def test_the_digits_are_those_of_the_handbook() -> None:
    """Class counts of scikit-learn's documentation of load_digits; the first image is a zero."""
    table = read_table(config_of("digits"))

    counts = Counter(table.strata)
    assert [counts[str(d)] for d in range(10)] == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len(table) == 1797
    first = table.examples[0]
    rows = (first.fields["image"][:, :, 0] * 16).astype(int)
    assert first.stratum == "0"
    assert rows[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert float(max(e.fields["image"].max() for e in table.examples)) == 1.0


@needs_images
def test_the_digits_have_no_sites_of_their_own() -> None:
    with pytest.raises(DataError, match=r"set data.partition to dirichlet or iid"):
        load_sites(config_of("digits"))
    sites = load_sites(config_of("digits", **{"data.partition": "iid", "data.sites": 3}))
    assert [sum(map(len, data.splits.values())) for data in sites.values()] == [599] * 3


@needs_images
def test_the_brain_is_a_brain() -> None:
    """The template is symmetric, so that a wrong order of axes, or a wrong start, would show."""
    table = read_table(config_of("mni"))

    assert Counter(table.sites) == {f"slab-{n}": 31 - (n > 2) for n in (1, 2, 3, 4)}
    images = np.stack([example.fields["image"][:, :, 0] for example in table.examples])
    masks = np.stack([example.fields["mask"] for example in table.examples])
    assert images.shape == masks.shape == (122, 116, 98)
    # An odd number of voxels is halved to an even one, so mirrored pixels share half their voxels.
    half = np.abs(images - images[:, :, ::-1]).mean() / images.mean()
    assert half < 0.15
    assert np.abs(images - images[:, ::-1]).mean() / images.mean() > 0.3
    means = [float(images[masks == c].mean()) for c in range(3)]
    assert means[0] < means[1] < means[2], "T1: white matter is brightest"
    for c in (1, 2):
        assert 0.05 < float((masks == c).mean()) < 0.35


def test_a_volume_is_read_by_its_header() -> None:
    voxels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4, order="F")
    header = bytearray(352)
    header[40:56] = np.array([3, 2, 3, 4, 1, 1, 1, 1], "<i2").tobytes()
    header[108:112] = np.array([352], "<f4").tobytes()

    read = read_volume(bytes(header) + voxels.tobytes(order="F"))

    assert np.array_equal(read, voxels)
    assert halve(read).shape == (1, 1, 4)
    assert halve(read)[0, 0, 1] == pytest.approx(voxels[:, :2, 1].mean() / 255)


@pytest.mark.parametrize("name", TASKS)
def test_without_the_file_there_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(DataError, match=f"embedded:{name} needs .* run `make images`"):
        read_table(config_of(name))

    pinned_path(WHEELS[name]).parent.mkdir(parents=True)
    pinned_path(WHEELS[name]).write_bytes(b"something else")
    with pytest.raises(DataError, match="has an unexpected SHA-256"):
        read_table(config_of(name))
