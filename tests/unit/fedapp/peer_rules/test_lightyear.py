"""LIGHTYEAR's rule on views that are written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from fedapp.adapter import Adapter, LoraPair
from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.gates import Gates
from fedapp.mixing import combine
from fedapp.ntk import agreement, alignment, kernel
from fedapp.outputs import profile, profile_agreement, softmax
from fedapp.peer_rules.base import Context, Mixed, Neighbour, View
from fedapp.peer_rules.lightyear import Lightyear, gates
from fedapp.peer_rules.nulls import useless
from fedapp.seeds import derive_seed

ROWS, FEATURES = 40, 6
OPEN = {"lightyear.kernel-gate": "off", "lightyear.prediction": -1.0, "lightyear.distance": 0.0}


def model(*numbers: float) -> Adapter:
    return Adapter({}, {"head.bias": np.array(numbers, np.float32)})


def sees(rows: int = ROWS, classes: int = 2) -> Callable[[Adapter], View]:
    """A view of a linear world: a model's numbers bend its features and weigh its outputs."""
    x_nd = np.random.default_rng(0).standard_normal((rows, FEATURES))

    def view(adapter: Adapter) -> View:
        bend = adapter.tensors["head.bias"].astype(np.float64)
        features_nd = x_nd * np.resize(bend, FEATURES)
        logits_nc = np.stack([features_nd @ np.resize(bend, FEATURES) * c for c in range(classes)])
        labels_n = (x_nd[:, 0] > 0).astype(np.int64)
        return View(features_nd, logits_nc.T, labels_n)

    return view


def run(
    own: Adapter,
    others: Sequence[Adapter],
    view: Callable[[Adapter], View] | None = None,
    round: int = 1,
    **flat: Any,
) -> Mixed:
    config = RunConfig.from_flat({"method": "lightyear", **flat})
    neighbours = [Neighbour(f"site-{number}", other) for number, other in enumerate(others)]
    context = Context(config, "here", round, view or sees(), lambda adapter: 0.5)
    return Lightyear(config).mix(own, neighbours, context)


@pytest.mark.parametrize(
    ("round", "floor", "with_self", "expected", "weights"),
    [
        (1, 0.0, False, [5, 3], (0.0, 0.5)),  # the mean of the two
        (1, 0.0, True, [4, 4], (1 / 3, 1 / 3)),
        (2, 0.0, False, [3.5, 4.5], (0.5, 0.25)),  # gamma = 1/2 of the way
        (2, 0.0, True, [3, 5], (2 / 3, 1 / 6)),
        (9, 0.5, True, [3, 5], (2 / 3, 1 / 6)),  # the floor holds
    ],
)
def test_it_moves_by_gamma_to_the_t_towards_the_mean(
    round: int, floor: float, with_self: bool, expected: list[float], weights: tuple[float, float]
) -> None:
    mixed = run(
        model(2, 6), [model(4, 4), model(6, 2)], round=round,
        **OPEN, **{"lightyear.gamma": 0.5, "lightyear.floor": floor},
        **{"lightyear.self-in-mean": with_self},
    )  # fmt: skip

    np.testing.assert_allclose(mixed.model.tensors["head.bias"], expected, rtol=1e-6)
    assert (mixed.own_weight, mixed.verdicts[0].weight) == pytest.approx(weights)
    assert mixed.own_weight + sum(v.weight for v in mixed.verdicts) == pytest.approx(1)


@pytest.mark.parametrize("on", ["products", "factors"])
def test_lora_is_mixed_on_products_or_on_factors(on: str) -> None:
    rng = np.random.default_rng(1)

    def lora() -> Adapter:
        b_mr, a_rn = rng.standard_normal((5, 2)), rng.standard_normal((2, 4))
        pair = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 2.0)
        return Adapter({"q": pair}, {"head.bias": np.ones(2, np.float32)})

    own, other = lora(), lora()
    mixed = run(own, [other], **OPEN, **{"lightyear.mix-on": on})

    expected, _ = combine([(0.5, own), (0.5, other)], on)  # type: ignore[arg-type]
    assert mixed.model.digest() == expected.digest()
    b, a = [sum(getattr(m.pairs["q"], f) for m in (own, other)) / 2 for f in ("b_mr", "a_rn")]
    pair = mixed.model.pairs["q"]
    assert np.allclose(pair.b_mr @ pair.a_rn, b @ a, atol=1e-5) == (on == "factors")


def test_a_flipped_and_a_distant_model_are_refused_by_their_gates_and_scored_by_all() -> None:
    own = model(1, 2)
    view = sees()
    mixed = run(
        own, [model(1.1, 2.1), model(-1, -2), model(9, 18), model(1, 0)], view,
        **{"lightyear.kernel-gate": "fixed", "lightyear.kernel": 0.9},
    )  # fmt: skip

    near, flipped, scaled, bent = mixed.verdicts
    assert near.accepted
    assert near.refused_by == ()
    assert flipped.refused_by == ("distance",), "in this world -x does what x does"
    assert "distance" in scaled.refused_by
    assert scaled.scores["distance"] == pytest.approx(8)
    assert "kernel" in bent.refused_by
    expected = agreement(view(own).features_nd, view(model(1, 0)).features_nd)
    assert bent.scores["agreement"] == pytest.approx(expected)
    assert all(set(v.scores) >= {"agreement", "prediction", "distance"} for v in mixed.verdicts)


@pytest.mark.parametrize("round", [1, 2])
@pytest.mark.parametrize("score", ["logits", "v1"])
def test_calibration_measures_from_useless_models_of_the_site_and_the_round(
    score: str, round: int
) -> None:
    own, near, view = model(1, 2), model(1.1, 2.1), sees()
    settings = {"lightyear.nulls": 3, "lightyear.agreement": score, "seed": 5}
    mixed = run(own, [near], view, round, **settings, **{"lightyear.kernel-gate": "calibrated"})

    def agreed(other: Adapter) -> float:
        if score == "logits":
            return agreement(view(own).features_nd, view(other).features_nd)
        profiles = [profile(softmax(v.logits_nc), v.labels_n) for v in (view(own), view(other))]
        return profile_agreement(*profiles)

    nulls = list(useless(own, 3, derive_seed(5, "nulls", "here", round)))
    null = sum(map(agreed, nulls)) / 3
    (verdict,) = mixed.verdicts
    assert len({each.digest() for each in nulls}) == 3
    assert 0 < null < 1
    assert mixed.numbers["null_agreement"] == pytest.approx(null)
    assert verdict.scores["null"] == pytest.approx(null)
    assert verdict.scores["calibrated"] == pytest.approx((agreed(near) - null) / (1 - null))


@pytest.mark.parametrize(
    ("rows", "bend"), [(2, (1.0, 2.0)), (0, (1.0, 2.0)), (ROWS, (0.0, 0.0))],
    ids=["two records", "no record", "constant features"],
)  # fmt: skip
@pytest.mark.parametrize("gate", ["fixed", "calibrated", "off"])
def test_where_nothing_can_be_judged_a_site_stays_alone(
    rows: int, bend: tuple[float, float], gate: str
) -> None:
    own = model(*bend)
    mixed = run(own, [own, own], sees(rows), **{"lightyear.kernel-gate": gate})

    assert mixed.model is own
    assert mixed.own_weight == 1
    refused_by = "prediction" if gate == "off" else "kernel"
    assert all(refused_by in verdict.refused_by for verdict in mixed.verdicts)


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("score", ["logits", "softmax-trace", "softmax-full", "v1"])
def test_every_score_is_0_with_fewer_than_three_records(score: str, rows: int) -> None:
    own = model(1.0, 2.0)
    settings = {"lightyear.kernel-gate": "fixed", "lightyear.agreement": score}
    mixed = run(own, [own], sees(rows), **settings)

    assert mixed.model is own
    assert mixed.verdicts[0].scores["agreement"] == 0


@pytest.mark.parametrize("score", ["logits", "softmax-trace", "softmax-full", "v1"])
def test_records_of_one_class_can_be_compared(score: str) -> None:
    def one_class(adapter: Adapter) -> View:
        view = sees()(adapter)
        labels = np.zeros(len(view.labels_n), np.int64)
        return View(view.features_nd, view.logits_nc, labels)

    own, other = model(1, 2), model(1, -1)
    views = [one_class(one) for one in (own, other)]
    settings = {"lightyear.agreement": score, "lightyear.kernel-gate": "fixed"}
    same, bent = run(own, [model(1, 2), other], one_class, **settings).verdicts

    assert same.accepted
    assert same.scores["agreement"] == pytest.approx(1)
    if score == "v1":
        profiles = [profile(softmax(v.logits_nc), np.zeros(ROWS, np.int64)) for v in views]
        expected = profile_agreement(*profiles)
    else:
        kind: Any = score.replace("-", "_")
        expected = alignment(*(kernel(v.features_nd, v.logits_nc, kind=kind) for v in views))
    assert 0.05 < expected < 0.95
    assert bent.scores["agreement"] == pytest.approx(expected)


def test_the_earlier_score_is_of_accuracy_calibration_and_confidence() -> None:
    own, other, view = model(1, 2), model(2, 1), sees()
    (verdict,) = run(own, [other], **OPEN, **{"lightyear.agreement": "v1"}).verdicts

    profiles = [profile(softmax(v.logits_nc), v.labels_n) for v in (view(own), view(other))]
    assert verdict.scores["agreement"] == pytest.approx(profile_agreement(*profiles))


def test_one_output_is_a_sigmoid() -> None:
    def single(adapter: Adapter) -> View:
        view = sees()(adapter)
        return View(view.features_nd, view.logits_nc[:, 1:], view.labels_n)

    near, _far = run(model(1, 2), [model(1.1, 2.1), model(-1, 2)], single, **OPEN).verdicts
    assert near.scores["prediction"] > 0.9  # type: ignore[operator]
    for score in ("v1", "softmax-full"):
        (verdict,) = run(
            model(1, 2), [model(1, 2)], single, **OPEN, **{"lightyear.agreement": score}
        ).verdicts
        assert verdict.scores["agreement"] == pytest.approx(1)


def test_a_kernel_that_would_be_too_large_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"at most 4096, got 4400; lower p2p\.records"):
        run(model(1, 2), [model(1, 2)], sees(1100, 4), **{"lightyear.agreement": "softmax-full"})
    with pytest.raises(ConfigError, match=r"at most 4096, got 4400"):  # a sigmoid's are two
        run(model(1, 2), [model(1, 2)], sees(2200, 1), **{"lightyear.agreement": "softmax-full"})


def test_without_neighbours_nothing_is_looked_at() -> None:
    def never(adapter: Adapter) -> View:
        raise AssertionError("a forward pass for nobody")

    own = model(1, 2)
    mixed = run(own, [], never)
    assert (mixed.model, mixed.own_weight, mixed.verdicts) == (own, 1.0, ())


def test_the_papers_preset_is_the_literal_method() -> None:
    paper = RunConfig.from_flat({"method": "lightyear", "lightyear.preset": "paper"})
    settings = paper.lightyear.effective()

    assert (settings.kernel_gate, settings.kernel, settings.agreement) == ("fixed", 0.6, "logits")
    assert (settings.prediction, settings.distance, settings.head_distance) == (-1, 0, 0)
    assert (settings.gamma, settings.floor, settings.self_in_mean) == (0.95, 0, False)
    mixed = run(model(1, 2), [model(10, 20), model(-1, -2)], **{"lightyear.preset": "paper"})
    assert [v.refused_by for v in mixed.verdicts] == [(), ()], "it is blind to both"


@pytest.mark.parametrize(
    ("flat", "words"),
    [
        ({"lightyear.preset": "paper", "lightyear.kernel": 0.5}, "fixes lightyear.kernel at 0.6"),
        ({"federation.algorithm": "scaffold"}, "there is no merge"),
        ({"federation.interference": True}, "no site knows all updates"),
        ({"federation.gsnr": 8}, "follows a shared model"),
        ({"federation.held-out": "Basel"}, "are each site's own"),
    ],
)
def test_settings_that_mean_nothing_are_refused(flat: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RunConfig.from_flat({"method": "lightyear", **flat})


@pytest.mark.parametrize(
    ("key", "refused", "taken", "words"),
    [
        ("prediction", (-1.999, -1.5, -1.0001), (-2, -1, -0.5, 0, 1), r"-1 \(no gate\), or more"),
        ("distance", (-0.999, -0.5, -1e-9), (-1, 0, 1e-9, 3), r"0 \(no gate\), or more"),
        ("head-distance", (-0.999, -0.5, -1e-9), (-1, 0, 1e-9, 3), r"0 \(no gate\), or more"),
    ],
)
def test_what_lies_between_a_default_and_no_gate_is_refused_by_name(
    key: str, refused: tuple[float, ...], taken: tuple[float, ...], words: str
) -> None:
    for value in refused:
        with pytest.raises(
            ConfigError, match=rf"setting 'lightyear\.{key}': expected -\d \(.*{words}"
        ):
            RunConfig.from_flat({f"lightyear.{key}": value})
    for value in taken:
        RunConfig.from_flat({f"lightyear.{key}": value})


def _lora(head: tuple[float, ...] = (), seed: int = 3) -> Adapter:
    rng = np.random.default_rng(seed)
    b_mr, a_rn = rng.standard_normal((5, 2)), rng.standard_normal((2, 4))
    pair = LoraPair(b_mr.astype(np.float32), a_rn.astype(np.float32), 1.0)
    return Adapter({"q": pair}, {"head.bias": np.array(head, np.float32)} if head else {})


def test_by_default_the_gates_are_those_that_fit_what_is_trained() -> None:
    settings = RunConfig().lightyear
    trained_whole, with_head, without = model(1, 2), _lora((1, 2)), _lora()

    assert gates(settings, trained_whole) == Gates(0.4, True, prediction=0.2, distance=0.9)
    assert gates(settings, with_head) == Gates(None, False, None, distance=3.0, head=1.1)
    assert gates(settings, without) == Gates(None, False, prediction=0.2, distance=3.0)
    fixed = RunConfig.from_flat({"lightyear.kernel-gate": "fixed", "lightyear.distance": 0.0})
    assert gates(fixed.lightyear, with_head) == Gates(0.4, False, None, None, head=1.1)
    asked = {"lightyear.prediction": 0.3, "lightyear.head-distance": 0.8}
    for own in (trained_whole, with_head, without):
        given = gates(RunConfig.from_flat(asked).lightyear, own)
        assert (given.prediction, given.head) == (0.3, 0.8)
    none = RunConfig.from_flat({"lightyear.head-distance": 0.0, "lightyear.prediction": -1.0})
    assert gates(none.lightyear, with_head) == Gates(None, False, None, distance=3.0)


def test_of_a_lora_model_the_head_tells_who_is_flipped() -> None:
    """Its pairs begin at zero, and honest ones lie as far apart as a flipped one."""
    heads = ((1.5, 2.5), (-1, -2), (-0.5, -1))
    mixed = run(_lora((1, 2)), [_lora(head, seed) for seed, head in enumerate(heads)])

    assert [v.refused_by for v in mixed.verdicts] == [(), ("head",), ("head",)]
    assert [v.scores["head"] for v in mixed.verdicts] == pytest.approx([0.1**0.5, 2, 1.5])
