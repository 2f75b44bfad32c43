"""The settings of the gossip layer: bounds, units, and a form without pydantic."""

import json
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from fedapp.config_gossip import GossipSection
from fedapp.gossip.chunks import MAX_CHUNK, MIN_CHUNK
from fedapp.gossip.signed import MAX_LIFETIME


def test_bytes_are_derived_from_megabytes_and_kibibytes():
    section = GossipSection(max_payload_mb=1.5, chunk_kib=64, store_mb=3)

    assert (section.max_payload, section.chunk, section.store_bytes) == (
        1_500_000,
        65536,
        3_000_000,
    )


def test_the_plain_form_has_every_setting_and_survives_json():
    section = GossipSection()

    plain = SimpleNamespace(**json.loads(json.dumps(section.plain())))

    names = [*GossipSection.model_fields, "max_payload", "chunk", "store_bytes"]
    assert {name: getattr(plain, name) for name in names} == {
        name: getattr(section, name) for name in names
    }


def test_the_bounds_are_those_of_the_envelope():
    assert GossipSection(chunk_kib=MIN_CHUNK // 1024).chunk == MIN_CHUNK
    assert GossipSection(chunk_kib=MAX_CHUNK // 1024).chunk == MAX_CHUNK
    assert GossipSection(lifetime=MAX_LIFETIME).lifetime == MAX_LIFETIME
    for wrong in ({"chunk_kib": 15}, {"chunk_kib": 2049}, {"lifetime": MAX_LIFETIME + 1}):
        with pytest.raises(ValidationError):
            GossipSection(**wrong)


def test_every_time_and_size_has_a_unit():
    for name, info in GossipSection.model_fields.items():
        extra = info.json_schema_extra
        if name not in ("max_pulls", "calls_per_peer"):
            assert extra["unit"] in ("MB", "KiB", "s", "rounds"), name
