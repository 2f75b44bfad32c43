"""One digest vouches for every chunk, its place, and the sizes."""

import hashlib

import pytest

from fedapp.gossip.chunks import Grid, digest, manifest, payload_digest


@pytest.mark.parametrize(("size", "count"), [(1, 1), (16, 1), (17, 2), (32, 2), (33, 3)])
def test_the_grid_covers_the_payload_once(size, count):
    grid = Grid(size, 16)
    offsets = range(0, size, 16)

    assert grid.count == len(offsets) == count
    assert sum(grid.length(offset) for offset in offsets) == size
    assert grid.manifest_bytes == 32 * count


def test_the_manifest_holds_the_digest_of_every_chunk():
    payload = bytes(range(40))
    grid = Grid(40, 16)

    found = manifest(payload, grid)

    for start in (0, 16, 32):
        expected = hashlib.sha256(payload[start : start + 16]).digest()
        assert grid.digest(found, start) == expected == digest(payload[start : start + 16])


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_gives_the_same_manifest(kind):
    assert manifest(kind(b"x" * 100), Grid(100, 16)) == manifest(b"x" * 100, Grid(100, 16))


def test_payloads_chunks_orders_and_sizes_that_differ_have_other_digests():
    grid, payload = Grid(32, 16), b"a" * 16 + b"b" * 16
    digests = {
        payload_digest(manifest(payload, grid), grid),
        payload_digest(manifest(payload[::-1], grid), grid),
        payload_digest(manifest(payload, Grid(32, 32)), Grid(32, 32)),
        payload_digest(manifest(payload, grid), Grid(31, 16)),
        payload_digest(manifest(payload, grid), Grid(32, 17)),
    }

    assert len(digests) == 5
