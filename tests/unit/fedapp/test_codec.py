"""The codec: bit-exact or within its stated bound, and unimpressed by forged layouts."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from memory import peak

from fedapp.adapter import Adapter, LoraPair
from fedapp.codec import CODECS, Layout, Packed, decode, encode, pack
from fedapp.codec_formats import from_bf16, to_bf16
from fedapp.errors import UpdateRefused

ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
PRINTABLE = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=12)


@st.composite
def adapters(draw, numbers=ANY_FLOAT):
    def array(shape):
        return draw(npst.arrays(np.float32, shape, elements=numbers))

    size = st.integers(1, 5)
    pairs = {}
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        m, n, r = draw(size), draw(size), draw(size)
        scaling = draw(st.floats(1e-6, 1e6))
        pairs[name] = LoraPair(array((m, r)), array((r, n)), scaling)
    shapes = npst.array_shapes(min_dims=0, max_dims=4, max_side=4)
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return Adapter(pairs, {name: array(draw(shapes)) for name in names})


def _example(seed=0, m=6, n=9, r=3):
    rng = np.random.default_rng(seed)
    return Adapter(
        {
            "layer.0.query": LoraPair(
                rng.normal(size=(m, r)).astype("f4"), rng.normal(size=(r, n)).astype("f4"), 2.0
            ),
            "layer.0.value": LoraPair(
                rng.normal(size=(m, r)).astype("f4"), rng.normal(size=(r, n)).astype("f4"), 0.1
            ),
        },
        {
            "classifier.bias": rng.normal(size=2).astype("f4"),
            "classifier.weight": rng.normal(size=(2, m)).astype("f4"),
        },
    )


def _same_layout(one, two):
    assert one.layout() == two.layout()
    assert one.layout_digest() == two.layout_digest()
    assert all(array.dtype == np.float32 for _, array in two.arrays())


class TestFormats:
    @settings(deadline=None, max_examples=100)
    @given(adapters())
    def test_fp32_is_bit_exact(self, adapter):
        array, layout = encode(adapter)
        back = decode(array, Layout.from_json(layout.to_json()))

        _same_layout(adapter, back)
        assert back.digest() == adapter.digest()
        assert array.tobytes() == b"".join(x.astype("<f4").tobytes() for _, x in adapter.arrays())

    @settings(deadline=None, max_examples=100)
    @given(adapters())
    def test_bf16_equals_pytorchs(self, adapter):
        torch = pytest.importorskip("torch")

        back = pack(adapter, "bf16").unpack()

        _same_layout(adapter, back)
        for (_, was), (_, now) in zip(adapter.arrays(), back.arrays(), strict=True):
            expected = torch.from_numpy(was).to(torch.bfloat16).float().numpy()
            np.testing.assert_array_equal(now, expected)

    def test_bf16_equals_pytorchs_on_random_bit_patterns(self):
        torch = pytest.importorskip("torch")
        bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
        ties = (bits & 0xFFFF0000) | 0x8000  # exactly half way between two neighbours
        values = np.concatenate([bits, ties]).view(np.float32)

        patterns = to_bf16(values)

        expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
        nan = np.isnan(values)
        np.testing.assert_array_equal(patterns[~nan].view(np.int16), expected[~nan])
        assert np.isnan(from_bf16(patterns[nan])).all()

    def test_bf16_patterns_survive_a_second_round_trip(self):
        patterns = np.arange(2**16, dtype=np.uint16)
        values = from_bf16(patterns)
        finite = ~np.isnan(values)

        np.testing.assert_array_equal(to_bf16(values)[finite], patterns[finite])

    @settings(deadline=None, max_examples=100)
    @given(adapters(FINITE))
    def test_bf16_stays_within_its_stated_bound(self, adapter):
        back = pack(adapter, "bf16").unpack()

        for (_, was), (_, now) in zip(adapter.arrays(), back.arrays(), strict=True):
            normal = (np.abs(was) > 2e-38) & (np.abs(was) < 3.38e38)
            error = np.abs(now[normal].astype("f8") - was[normal])
            assert (error <= 2.0**-8 * np.abs(was[normal].astype("f8"))).all()

    @settings(deadline=None, max_examples=150)
    @given(adapters(FINITE))
    def test_int8_stays_within_half_a_scale_of_each_row(self, adapter):
        back = pack(adapter, "int8").unpack()

        _same_layout(adapter, back)
        for (_, was), (_, now) in zip(adapter.arrays(), back.arrays(), strict=True):
            height = was.shape[0] if was.ndim > 1 else 1
            rows, restored = was.reshape(height, -1).astype("f8"), now.reshape(height, -1)
            assert np.isfinite(restored).all()
            largest = np.abs(rows).max(axis=1, keepdims=True)
            # The scale is rounded up to fp32, whose smallest step is 1.4e-45.
            scale = largest / 127 * (1 + 2.0**-22) + 1.5e-45
            assert (np.abs(restored - rows) <= scale * 0.5 * (1 + 2.0**-15)).all()

    @settings(deadline=None, max_examples=100)
    @given(adapters(), st.sampled_from(CODECS))
    def test_nan_and_inf_never_arrive_as_finite_numbers(self, adapter, codec):
        back = pack(adapter, codec).unpack()

        for (_, was), (_, now) in zip(adapter.arrays(), back.arrays(), strict=True):
            assert (~np.isfinite(now[~np.isfinite(was)])).all()

    def test_int8_rows_do_not_disturb_each_other(self):
        weight = np.array([[1e-20, -1e-20, 0], [1e20, 2e20, 0], [0, 0, 0]], np.float32)

        back = pack(Adapter({}, {"w": weight}), "int8").unpack().tensors["w"]

        np.testing.assert_allclose(back, weight, rtol=0.01)

    @pytest.mark.parametrize(
        ("codec", "expected"),
        [("fp32", 4 * 104), ("bf16", 2 * 104), ("int8", 104 + 4 * (2 * (6 + 3) + 1 + 2))],
    )
    def test_the_flat_array_is_as_small_as_promised(self, codec, expected):
        packed = pack(_example(), codec)

        assert _example().size == 104
        assert packed.nbytes == packed.array.nbytes == packed.layout.nbytes == expected
        assert packed.array.dtype == np.uint8
        assert packed.array.ndim == 1

    @pytest.mark.parametrize("codec", CODECS)
    def test_encoding_looks_at_values_not_at_memory(self, codec):
        adapter = _example()
        odd = adapter.map(lambda _, x: np.asfortranarray(x.astype(">f8"))[..., ::-1][..., ::-1])

        array, layout = encode(odd, codec)

        assert layout == encode(adapter, codec)[1]
        np.testing.assert_array_equal(array, encode(adapter, codec)[0])


class TestDecoding:
    def test_fp32_is_decoded_without_a_copy(self):
        array, layout = encode(_example())

        for _, decoded in decode(array, layout).arrays():
            assert np.shares_memory(decoded, array)

    @pytest.mark.parametrize("codec", CODECS)
    def test_what_is_decoded_cannot_be_written(self, codec):
        array, layout = encode(_example(), codec)

        for source in (array, array.copy()):
            for _, decoded in decode(source, layout).arrays():
                with pytest.raises(ValueError, match="read-only"):
                    decoded.flat[0] = 1

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("offset", [0, 1, 2, 3])
    def test_a_slice_of_a_larger_buffer_is_read_wherever_it_starts(self, codec, offset):
        array, layout = encode(_example(), codec)
        buffer = np.concatenate([np.zeros(offset, np.uint8), array])[offset:]

        assert decode(buffer, layout).digest() == decode(array, layout).digest()

    def test_every_second_byte_of_a_buffer_is_read_too(self):
        array, layout = encode(_example())

        assert decode(np.repeat(array, 2)[::2], layout).digest() == _example().digest()

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_single_flipped_bit_is_noticed(self, codec):
        array, layout = encode(_example(), codec)
        for position in (0, len(array) // 2, len(array) - 1):
            damaged = array.copy()
            damaged[position] ^= 4
            with pytest.raises(UpdateRefused, match="SHA-256 must be") as caught:
                decode(damaged, layout)
            assert caught.value.reason == "wrong-digest"

    @pytest.mark.parametrize(
        "change", [lambda x: x[:-1], lambda x: np.append(x, x[:1]), lambda x: x[:0]]
    )
    def test_a_payload_of_another_length_is_refused(self, change):
        array, layout = encode(_example())

        with pytest.raises(UpdateRefused, match="must have 416 bytes, got") as caught:
            decode(change(array), layout)
        assert caught.value.reason == "wrong-size"

    @pytest.mark.parametrize(
        "change", [lambda x: x.view(np.float32), lambda x: x.reshape(2, -1), lambda x: x.tobytes()]
    )
    def test_anything_but_flat_bytes_is_refused(self, change):
        array, layout = encode(_example())

        with pytest.raises(UpdateRefused, match="one flat uint8 array, got") as caught:
            decode(change(array), layout)
        assert caught.value.reason == "wrong-dtype"


class TestEncoding:
    def test_an_unknown_codec_is_refused(self):
        with pytest.raises(UpdateRefused, match="fp32, bf16, int8, got 'fp8'"):
            encode(_example(), "fp8")

    @pytest.mark.parametrize(
        ("adapter", "reason"),
        [
            (Adapter({"x": LoraPair(np.ones((3, 2)), np.ones((3, 4)), 1.0)}), "wrong-rank"),
            (Adapter({"x": LoraPair(np.ones(3), np.ones((3, 4)), 1.0)}), "wrong-shape"),
            (Adapter({}, {"x": np.ones((0, 3))}), "wrong-shape"),
            (Adapter({}, {"x": np.ones((1,) * 9)}), "wrong-shape"),
            (Adapter({"x": LoraPair(np.ones((3, 2)), np.ones((2, 4)), 0.0)}), "wrong-layout"),
            (Adapter({"x": LoraPair(np.ones((3, 2)), np.ones((2, 4)), np.nan)}), "wrong-layout"),
            (Adapter({}, {"x\n": np.ones(3)}), "wrong-layout"),
            (Adapter({}, {"": np.ones(3)}), "wrong-layout"),
            (
                Adapter(
                    {"x": LoraPair(np.ones((3, 2)), np.ones((2, 4)), 1.0)}, {"x.lora_A": np.ones(3)}
                ),
                "wrong-layout",
            ),
        ],
    )
    def test_an_adapter_that_no_site_could_accept_is_not_sent(self, adapter, reason):
        with pytest.raises(UpdateRefused) as caught:
            encode(adapter)
        assert caught.value.reason == reason

    def test_the_digest_is_the_sha256_of_the_bytes(self):
        array, layout = encode(_example(), "bf16")

        assert layout.digest == hashlib.sha256(array.tobytes()).hexdigest()
        assert not array.flags.writeable


def _edit(**changes):
    def edit(fields):
        fields.update(changes)

    return edit


def _resize(name, b_shape, a_shape):
    def edit(fields):
        fields["pairs"][name][:2] = [b_shape, a_shape]

    return edit


def _no_key(key):
    return lambda fields: fields.pop(key)


QUERY, VALUE = "layer.0.query", "layer.0.value"
FORGED = {
    "unknown codec": (_edit(codec="pickle"), "wrong-codec"),
    "codec is a list": (_edit(codec=["fp32"]), "wrong-codec"),
    "other known codec": (_edit(codec="int8"), "wrong-size"),
    "unknown key": (_edit(offsets=[0]), "wrong-layout"),
    "missing key": (_no_key("digest"), "wrong-layout"),
    "pairs is a list": (_edit(pairs=[]), "wrong-layout"),
    "tensors is null": (_edit(tensors=None), "wrong-layout"),
    "pair is a number": (lambda f: f["pairs"].update({QUERY: 3}), "wrong-layout"),
    "pair is too short": (lambda f: f["pairs"][QUERY].pop(), "wrong-layout"),
    "shape is a number": (lambda f: f["tensors"].update({"classifier.bias": 2}), "wrong-layout"),
    "names out of order": (
        lambda f: f.update(pairs=dict(reversed(f["pairs"].items()))),
        "wrong-layout",
    ),
    "scaling is negative": (lambda f: f["pairs"][QUERY].__setitem__(2, -2.0), "wrong-layout"),
    "scaling is text": (lambda f: f["pairs"][QUERY].__setitem__(2, "2.0"), "wrong-layout"),
    "scaling is true": (lambda f: f["pairs"][QUERY].__setitem__(2, True), "wrong-layout"),
    "scaling overflows": (lambda f: f["pairs"][QUERY].__setitem__(2, 10**400), "wrong-layout"),
    "foreign name of no pair": (
        lambda f: f["pairs"].update({"\ud800\x1b" * 9999: 3}),
        "wrong-layout",
    ),
    "foreign name of no shape": (
        lambda f: f["tensors"].update({"\ud800\x1b" * 9999: 3}),
        "wrong-layout",
    ),
    "name is far too long": (lambda f: f["tensors"].update({"x" * 513: [1]}), "wrong-layout"),
    "name has a control character": (
        lambda f: f["tensors"].update({"x\u001b[2J": [1]}),
        "wrong-layout",
    ),
    "name of another array": (
        lambda f: f.update(tensors={f"{QUERY}.lora_B": [6, 3]}),
        "wrong-layout",
    ),
    "digest is short": (_edit(digest="ab"), "wrong-layout"),
    "digest is not hexadecimal": (_edit(digest="z" * 64), "wrong-layout"),
    "digest is a number": (_edit(digest=0), "wrong-layout"),
    "negative size": (_resize(QUERY, [-6, 3], [3, 9]), "wrong-shape"),
    "zero size": (_resize(QUERY, [6, 0], [0, 9]), "wrong-shape"),
    "fractional size": (_resize(QUERY, [6.0, 3], [3, 9]), "wrong-shape"),
    "boolean size": (_resize(QUERY, [6, True], [True, 9]), "wrong-shape"),
    "text as size": (_resize(QUERY, ["6", 3], [3, 9]), "wrong-shape"),
    "nested shape": (_resize(QUERY, [[6], 3], [3, 9]), "wrong-shape"),
    "three-dimensional factor": (_resize(QUERY, [6, 3, 1], [3, 9]), "wrong-shape"),
    "gigantic size": (_resize(QUERY, [10**30, 3], [3, 9]), "wrong-shape"),
    "many dimensions": (lambda f: f["tensors"].update({"classifier.bias": [1] * 9}), "wrong-shape"),
    "ranks differ": (_resize(QUERY, [6, 3], [4, 9]), "wrong-rank"),
    "large in total": (_resize(QUERY, [2**35, 3], [3, 9]), "oversized"),
    "size claims less": (_edit(nbytes=100), "wrong-size"),
    "size is negative": (_edit(nbytes=-416), "wrong-size"),
    "size is text": (_edit(nbytes="416"), "wrong-size"),
    "size is true to the last bit but a float": (_edit(nbytes=416.0), "wrong-size"),
    "layout digest of another": (_edit(layout_digest="0" * 64), "wrong-digest"),
    "layout digest missing": (_edit(layout_digest=None), "wrong-digest"),
    "renamed pair": (
        lambda f: f["pairs"].update({"layer.0.zzz": f["pairs"].pop(VALUE)}),
        "wrong-digest",
    ),
    "other scaling": (lambda f: f["pairs"][QUERY].__setitem__(2, 200.0), "wrong-digest"),
    "transposed tensor": (
        lambda f: f["tensors"].update({"classifier.weight": [6, 2]}),
        "wrong-digest",
    ),
}


class TestLayout:
    @pytest.mark.parametrize("codec", CODECS)
    def test_it_survives_json(self, codec):
        layout = pack(_example(), codec).layout

        assert Layout.from_json(layout.to_json()) == layout
        assert layout.layout_digest == _example().layout_digest()
        assert layout.adapter_layout() == _example().layout()

    @pytest.mark.parametrize("what", FORGED)
    def test_a_forged_layout_is_refused_with_its_reason(self, what):
        edit, reason = FORGED[what]
        fields = json.loads(pack(_example()).layout.to_json())
        edit(fields)

        with pytest.raises(UpdateRefused) as caught:
            Layout.from_json(json.dumps(fields))

        assert caught.value.reason == reason
        assert len(str(caught.value)) < 600
        assert str(caught.value).isprintable()

    @pytest.mark.parametrize("where", ["codec", "nbytes", "digest", "layout_digest", "tensors"])
    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
    def test_depth_that_can_be_read_but_not_written_is_refused(self, where, opening, closing):
        fields = json.loads(pack(_example()).layout.to_json())
        if where == "tensors":
            fields["tensors"]["classifier.bias"] = ["@"]
        else:
            fields[where] = "@"
        text = json.dumps(fields)

        for depth in range(800, 1000):
            value = opening * depth + "1" + closing * depth
            with pytest.raises(UpdateRefused):
                Layout.from_json(text.replace('"@"', value))

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("", "wrong-layout"),
            ("{", "wrong-layout"),
            ("null", "wrong-layout"),
            ("[]", "wrong-layout"),
            ("[" * 100_000, "wrong-layout"),
            ("9" * 10_000, "wrong-layout"),
            ('{"codec": NaN}', "wrong-layout"),
            ('{"codec": "fp32", "codec": "int8"}', "wrong-layout"),
            (b"{}", "wrong-layout"),
            (" " * (16 * 2**20 + 1), "oversized"),
        ],
    )
    def test_text_that_is_no_layout_is_refused(self, text, reason):
        with pytest.raises(UpdateRefused) as caught:
            Layout.from_json(text)
        assert caught.value.reason == reason

    def test_a_key_that_occurs_twice_is_refused_even_if_both_agree(self):
        text = pack(_example()).layout.to_json()

        with pytest.raises(UpdateRefused, match="a key occurs twice"):
            Layout.from_json('{"codec": "fp32", ' + text[1:])

    def test_a_hundred_thousand_arrays_are_too_many(self):
        fields = json.loads(pack(_example()).layout.to_json())
        fields["tensors"] = {f"t{number:06}": [1] for number in range(100_000)}

        with pytest.raises(UpdateRefused, match="100004 arrays") as caught:
            Layout.from_json(json.dumps(fields))
        assert caught.value.reason == "oversized"

    def test_a_claim_of_terabytes_is_refused_without_allocating(self):
        fields = json.loads(pack(_example()).layout.to_json())
        fields["pairs"][QUERY][:2] = [[2**31, 2], [2, 2**31]]
        fields["nbytes"] = 4 * (2**33 + 5 * 2**8)
        text = json.dumps(fields)

        def attempt():
            with pytest.raises(UpdateRefused):
                Layout.from_json(text)

        assert peak(attempt) < 2**20


def test_packed_is_an_identity_not_a_value():
    packed = pack(_example())

    assert packed == packed
    assert packed != Packed(packed.array, packed.layout)  # and no ambiguous array comparison
