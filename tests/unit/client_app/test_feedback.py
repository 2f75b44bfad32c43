"""Error feedback against plain sums: nothing is lost for good, in any basis."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.feedback import FEEDBACK, distances
from client_app.feedback import encode_increment, encode_payloads, in_new_basis
from fedapp.adapter import Adapter, LoraPair
from fedapp.increments import add, difference

M, N, R = 9, 7, 3
SHORT = ("bf16", "int8")


def draw(rng, size=1.0):
    """A random adapter whose rows differ in size by orders of magnitude."""

    def normal(*shape):
        rows = 10.0 ** rng.integers(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
        return (size * rows * rng.standard_normal(shape)).astype(np.float32)

    pairs = {name: LoraPair(normal(M, R), normal(R, N), 2.0) for name in ("q", "v")}
    return Adapter(pairs, {"head.weight": normal(2, N), "head.bias": normal(2)})


def arrays(adapter):
    return dict(adapter.arrays())


def same(one, two):
    return all(np.array_equal(x, arrays(two)[name]) for name, x in one.arrays())


@given(st.integers(0, 2**32 - 1), st.sampled_from(SHORT), st.floats(1e-6, 1e3))
def test_sent_and_kept_are_together_what_was_meant(seed, codec, size):
    rng = np.random.default_rng(seed)
    received, trained, residual = draw(rng), draw(rng), draw(rng, size)

    sent = encode_increment(trained, received, residual, codec)

    meant = add(difference(trained, received), residual)
    decoded = sent.packed.unpack()
    assert same(add(decoded, sent.residual), meant), "bit for bit"
    assert same(sent.adapter, add(received, decoded))
    for name, array in meant.arrays():
        left = np.abs(arrays(sent.residual)[name].astype(np.float64))
        if codec == "bf16":  # half of the last of 8 binary digits
            bound = np.abs(array) * 2.0**-8 + 1e-40
        else:  # half a step of the row's largest magnitude over 127
            rows = np.abs(array).reshape(array.shape[0] if array.ndim > 1 else 1, -1).max(axis=1)
            bound = (rows * (0.5 / 127) * (1 + 1e-6) + 1e-40).reshape(
                (-1,) + (1,) * (array.ndim - 1)
            )
        assert (left <= bound).all(), name


@pytest.mark.parametrize("codec", SHORT)
def test_the_sum_of_what_was_sent_telescopes(codec):
    rng = np.random.default_rng(3)
    base, residual = draw(rng), None
    meant = {name: np.zeros(x.shape) for name, x in base.arrays()}
    arrived = {name: np.zeros(x.shape) for name, x in base.arrays()}

    for _ in range(50):
        work = draw(rng)
        sent = encode_increment(add(base, work), base, residual, codec)
        residual = sent.residual
        for name, x in difference(add(base, work), base).arrays():
            meant[name] += x
            arrived[name] += arrays(sent.packed.unpack())[name]

    for name, total in meant.items():
        np.testing.assert_allclose(
            arrived[name], total - arrays(residual)[name], rtol=0, atol=2e-5 * np.abs(total).max()
        )


@pytest.mark.parametrize("feedback", [True, False])
def test_work_below_half_a_step_arrives_only_with_feedback(feedback):
    """One large number sets the row's scale; the small ones are below half of it every round."""
    zero = Adapter({}, {"head": np.zeros((1, 3), np.float32)})
    work = Adapter({}, {"head": np.array([[1.0, 0.002, -0.003]], np.float32)})
    total, residual = np.zeros((1, 3)), None

    for _ in range(100):
        sent = encode_increment(work, zero, residual if feedback else None, "int8")
        total, residual = total + sent.packed.unpack().tensors["head"], sent.residual

    if feedback:
        np.testing.assert_allclose(total, [[100, 0.2, -0.3]], atol=1 / 127)
    else:
        assert not total[0, 1:].any()


@pytest.mark.parametrize("codec", SHORT)
def test_on_a_quadratic_feedback_is_unbiased_over_the_rounds(codec):
    """Sites pull towards different targets; at the mean of them their work stays, and cancels.

    The same rounding errors then come back every round: a bias without feedback. With it their
    mean over the rounds tends to zero.
    """
    rng = np.random.default_rng(0)
    targets = [rng.standard_normal((4, 50)).astype(np.float32) * 3 for _ in range(4)]
    optimum = np.mean([t.astype(np.float64) for t in targets], axis=0)

    def bias(feedback):
        model = Adapter({}, {"head": np.zeros((4, 50), np.float32)})
        residuals, late = [None] * 4, []
        for round_ in range(300):
            sent = []
            for k, target in enumerate(targets):
                trained = model.map(lambda _, x, t=target: x + np.float32(0.3) * (t - x))
                sent.append(encode_increment(trained, model, residuals[k], codec))
                residuals[k] = sent[k].residual if feedback else None
            mean = np.mean([s.adapter.tensors["head"] for s in sent], axis=0)
            model = Adapter({}, {"head": mean.astype(np.float32)})
            if round_ >= 100:
                late.append(mean.astype(np.float64))
        return np.abs(np.mean(late, axis=0) - optimum).mean()

    assert bias(True) < 0.1 * bias(False)


def turned(adapter, rng, orthogonal=False):
    """The same products in other factors: B Q, Q^-1 A."""
    pairs = {}
    for name, pair in adapter.pairs.items():
        q = rng.standard_normal((R, R)) + 2 * np.eye(R)
        q = np.linalg.qr(q)[0] if orthogonal else q
        pairs[name] = LoraPair(
            (pair.b_mr @ q).astype(np.float32),
            np.linalg.solve(q, pair.a_rn.astype(np.float64)).astype(np.float32),
            pair.scaling,
        )
    return Adapter(pairs, adapter.tensors)


def plain(rng):
    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    return Adapter({"q": LoraPair(normal(M, R), normal(R, N), 2.0)}, {"head": normal(2, N)})


def worth(residual, pair_of, name):
    """The residual's first-order change of a dense product."""
    left, pair = residual.pairs[name], pair_of.pairs[name]
    return left.b_mr @ pair.a_rn + pair.b_mr @ left.a_rn


def test_in_other_factors_of_the_same_product_a_residual_is_worth_the_same():
    rng = np.random.default_rng(1)
    sent, residual = plain(rng), plain(rng)
    received = turned(sent, rng)

    moved = in_new_basis(residual, sent, received)

    np.testing.assert_allclose(
        worth(moved, received, "q"), worth(residual, sent, "q"), rtol=1e-3, atol=1e-4
    )
    assert not np.allclose(moved.pairs["q"].b_mr, residual.pairs["q"].b_mr, atol=0.1)
    assert np.array_equal(moved.tensors["head"], residual.tensors["head"])


@given(st.integers(0, 2**32 - 1))
def test_in_another_space_what_it_can_hold_is_kept(seed):
    rng = np.random.default_rng(seed)
    sent, received, residual = plain(rng), plain(rng), plain(rng)

    moved = in_new_basis(residual, sent, received).pairs["q"]

    old, new, left = (x.pairs["q"] for x in (sent, received, residual))
    rows = np.linalg.qr(new.a_rn.T.astype(np.float64))[0]
    columns = np.linalg.qr(new.b_mr.astype(np.float64))[0]
    np.testing.assert_allclose(
        moved.b_mr @ new.a_rn, left.b_mr @ old.a_rn @ rows @ rows.T, rtol=1e-2, atol=1e-2
    )
    np.testing.assert_allclose(
        new.b_mr @ moved.a_rn, columns @ columns.T @ old.b_mr @ left.a_rn, rtol=1e-2, atol=1e-2
    )


def test_zero_factors_hold_nothing():
    rng = np.random.default_rng(2)
    sent, residual = plain(rng), plain(rng)
    received = sent.map(lambda name, x: np.zeros_like(x) if name.endswith("lora_B") else x)

    moved = in_new_basis(residual, sent, received).pairs["q"]

    assert not moved.a_rn.any()
    np.testing.assert_allclose(moved.b_mr, residual.pairs["q"].b_mr, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("codec", ["fp32", *SHORT])
@pytest.mark.parametrize("new_basis", [False, True])
def test_what_is_sent_and_kept(codec, new_basis):
    rng = np.random.default_rng(4)
    received, trained, other = draw(rng), draw(rng), draw(rng)
    payloads = {"adapter": trained, "basis": other}

    packed, kept = encode_payloads(payloads, {"adapter": received}, codec, {}, new_basis=new_basis)
    again, _ = encode_payloads(payloads, {"adapter": received}, codec, kept, new_basis=new_basis)
    bare, nothing = encode_payloads(
        payloads, {"adapter": received}, codec, None, new_basis=new_basis
    )

    assert {p.layout.codec for p in packed.values()} == {codec}
    assert packed["adapter"].layout.layout_digest == trained.layout_digest()
    assert packed["basis"].layout.digest == again["basis"].layout.digest, "not an increment"
    assert bare["adapter"].layout.digest == packed["adapter"].layout.digest, "nothing is left yet"
    assert nothing == {}
    if codec == "fp32":
        assert kept == {}
        assert packed["adapter"].unpack().digest() == trained.digest()
    else:
        names = {"residual.adapter", "sent.adapter"} if new_basis else {"residual.adapter"}
        assert set(kept) == names
        assert again["adapter"].layout.digest != packed["adapter"].layout.digest


@pytest.mark.parametrize("codec", SHORT)
def test_what_is_not_trained_comes_back_bit_for_bit(codec):
    """fedsvd compares A so; the residual of a frozen array is zero in any basis."""
    rng = np.random.default_rng(5)
    received, kept = draw(rng), {}
    for _ in range(3):
        trained = received.map(
            lambda name, x: x if name.endswith("lora_A") else x + np.float32(0.1) * x[:1]
        )
        packed, kept = encode_payloads(
            {"adapter": trained}, {"adapter": received}, codec, kept, new_basis=True
        )
        arrived = add(received, packed["adapter"].unpack())
        for name, pair in received.pairs.items():
            assert np.array_equal(arrived.pairs[name].a_rn, pair.a_rn)
        received = turned(arrived, rng)


@pytest.mark.parametrize("codec", SHORT)
def test_the_sum_telescopes_through_changes_of_basis(codec):
    """With A kept, as in fedsvd, a turned basis loses nothing: products telescope like numbers."""
    rng = np.random.default_rng(6)
    received, kept = plain(rng), {}
    meant, arrived = np.zeros((M, N)), np.zeros((M, N))
    for _ in range(30):
        pair = received.pairs["q"]
        work = rng.standard_normal((M, R)).astype(np.float32)
        trained = received.map(lambda name, x, w=work: x + w if name == "q.lora_B" else x)
        packed, kept = encode_payloads(
            {"adapter": trained}, {"adapter": received}, codec, kept, new_basis=True
        )
        increment = packed["adapter"].unpack().pairs["q"]
        meant += (trained.pairs["q"].b_mr - pair.b_mr).astype(np.float64) @ pair.a_rn
        arrived += increment.b_mr.astype(np.float64) @ pair.a_rn
        last = kept["residual.adapter"].pairs["q"].b_mr.astype(np.float64) @ pair.a_rn
        received = turned(received, rng, orthogonal=True)

    scale = np.abs(meant).max()
    np.testing.assert_allclose(arrived, meant - last, atol=1e-4 * scale)
    assert np.abs(arrived - meant).max() > 1e-4 * scale, "the last residual is not nothing"


def test_through_the_merge_of_fedsvd_feedback_brings_the_model_nearer_to_fp32():
    last = {f: distances("fedsvd", "int8", f, seeds=2)["last"] for f in FEEDBACK}

    assert last["new basis"] < 0.5 * last["none"]
    assert last["new basis"] < last["same numbers"]
