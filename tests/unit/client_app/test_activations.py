"""Second moments of what the adapted layers see, against hooks written out by hand."""

import numpy as np
import pytest
import torch
from choice_models import QUESTIONS
from pictures import NETS, TASKS, records
from tiny_families import save_family
from tiny_residents import by_hand, items_of
from tiny_residents import tiny_resident as make

from client_app.activations import LayerInput, Sample, collect_inputs
from client_app.evaluation import evaluate
from client_app.models import load_resident
from fedapp.config import RunConfig
from fedapp.errors import ConfigError


@pytest.mark.parametrize(
    ("family", "targets", "groups"),
    [
        ("bert", "query,key,value,intermediate.dense", [3, 1, 3, 1]),
        ("gpt2", "c_attn,c_fc", [1, 1, 1, 1]),
        ("llama", "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", [3, 1, 2, 1] * 2),
    ],
)
def test_one_gram_a_distinct_input_without_padding(tmp_path, family, targets, groups):
    resident, config = make(tmp_path, family, targets)
    items = items_of(resident)

    found = collect_inputs(resident, items, config, tokens=10**6, seed=0)

    assert [len(one.layers) for one in found] == groups
    assert sorted(name for one in found for name in one.layers) == list(resident.parameters.layers)
    expected = by_hand(resident, items)
    tokens = sum(item["length"] for item in items)
    for one in found:
        assert one.tokens == tokens
        gram = one.gram_nn if one.h_tn is None else one.h_tn.T @ one.h_tn
        for name in one.layers:
            exact = expected[name].T @ expected[name]
            torch.testing.assert_close(gram.double(), exact, rtol=1e-4, atol=1e-4)


def test_a_layer_at_several_depths_is_looked_at_in_each(tmp_path):
    resident, config = make(tmp_path, "albert")
    items = items_of(resident)

    (found,) = collect_inputs(resident, items, config, tokens=10**6, seed=0)

    rows = by_hand(resident, items)[found.layers[0]]
    assert found.tokens == len(rows) == 2 * sum(item["length"] for item in items)
    torch.testing.assert_close(found.gram_nn.double(), rows.T @ rows, rtol=1e-4, atol=1e-4)


def test_longer_padding_changes_nothing(tmp_path):
    resident, config = make(tmp_path, "bert")
    items = items_of(resident)
    longest = config.with_changes({"train.eval-batch-size": 64})
    alone = config.with_changes({"train.eval-batch-size": 1})

    padded = collect_inputs(resident, items, longest, tokens=10**6, seed=0)
    unpadded = collect_inputs(resident, items, alone, tokens=10**6, seed=0)

    for a, b in zip(padded, unpadded, strict=True):
        torch.testing.assert_close(a.gram_nn, b.gram_nn, rtol=1e-4, atol=1e-4)
        # One row of padding would be seen.
        assert a.tokens == b.tokens


def test_a_seeded_choice_of_exactly_so_many_tokens(tmp_path):
    resident, config = make(tmp_path, "bert")
    items = items_of(resident)

    def look(tokens, seed=0):
        return collect_inputs(resident, items, config, tokens=tokens, seed=seed)[0]

    few, again, other = look(7), look(7), look(7, seed=1)

    assert few.tokens == 7
    assert few.gram_nn is None
    assert few.h_tn.shape == (7, 32), "fewer tokens than features: the rows are kept"
    assert torch.equal(few.h_tn, again.h_tn)
    assert not torch.equal(few.h_tn, other.h_tn)
    rows = by_hand(resident, items)[few.layers[0]]
    for row in few.h_tn.double():
        assert float((rows - row).abs().amax(dim=1).min()) < 1e-5, "a row of a record"


@pytest.mark.parametrize("tokens", [10**6, 30, 20, 7])
def test_an_evaluation_is_looked_at_as_it_goes(tmp_path, tokens):
    resident, config = make(tmp_path, "bert", "query,value")
    config = config.with_changes({"train.eval-batch-size": 2})
    items = items_of(resident)
    seen, rest = items[:3], items[3:]
    sample = Sample(resident, seen, rest, config, tokens=tokens, seed=0)

    metrics = evaluate(resident, seen, config, resident.device, sample.watch)
    found = sample.inputs()

    assert metrics == evaluate(resident, seen, config, resident.device), "and nothing is changed"
    total = sum(item["length"] for item in items)
    available = sum(item["length"] for item in seen)
    assert {one.tokens for one in found} == {min(tokens, total)}
    rows = by_hand(resident, seen + rest)[found[0].layers[0]]
    own = by_hand(resident, seen)[found[0].layers[0]]
    if tokens >= total:
        torch.testing.assert_close(found[0].gram_nn.double(), rows.T @ rows, rtol=1e-4, atol=1e-4)
    elif tokens < found[0].features:
        used = [float((row - own).abs().amax(dim=1).min()) for row in found[0].h_tn.double()]
        assert sum(gap < 1e-5 for gap in used) >= min(tokens, available), "evaluation comes first"
        assert all(float((row - rows).abs().amax(dim=1).min()) < 1e-5 for row in found[0].h_tn)


@pytest.mark.parametrize("logits", [1, 10**9])
def test_a_language_models_evaluation_may_run_in_pieces(monkeypatch, logits):
    """As it does where the vocabulary is large: `causal_lm.MOST_LOGITS`."""
    monkeypatch.setattr("client_app.tasks.causal_lm.MOST_LOGITS", logits)
    targets = "q_proj,k_proj,o_proj,gate_proj,up_proj,down_proj"
    flat = {
        "model.source": "embedded:tiny-decoder",
        "model.task": "causal-lm",
        "lora.targets": targets,
        "train.eval-batch-size": 2,
    }
    config = RunConfig.from_flat(flat)
    resident = load_resident(config, [])
    items = resident.task.prepare(
        [
            {"messages": [{"role": "user", "content": f"how old{n * ' is he'}?"}], "response": "63"}
            for n in range(5)
        ]
    )
    sample = Sample(resident, items, [], config, tokens=10**6, seed=0)

    evaluate(resident, items, config, resident.device, sample.watch)
    found = sample.inputs()

    expected = by_hand(resident, items)
    assert sorted(name for one in found for name in one.layers) == list(resident.parameters.layers)
    for one in found:
        assert one.tokens == sum(item["length"] - 1 for item in items)
        exact = expected[one.layers[0]].T @ expected[one.layers[0]]
        gram = one.gram_nn if one.h_tn is None else one.h_tn.T @ one.h_tn
        torch.testing.assert_close(gram.double(), exact, rtol=1e-4, atol=1e-4)


def test_an_evaluation_that_was_not_watched_to_its_end_is_noticed(tmp_path):
    resident, config = make(tmp_path, "bert")
    items = items_of(resident)
    sample = Sample(resident, items, [], config, tokens=5, seed=0)
    with pytest.raises(RuntimeError, match=r"0 of . batches"):
        sample.inputs()


@pytest.mark.parametrize("length", [None, 3])
def test_rows_and_their_gram_have_one_energy(length):
    rng = np.random.default_rng(0)
    h_tn = torch.tensor(rng.standard_normal((5, 4)), dtype=torch.float32)
    left = torch.tensor(rng.standard_normal((3, 4)), dtype=torch.float32)
    expected = float((h_tn @ left.T).square().sum())
    one = LayerInput(["x"])
    for part in (h_tn[:2], h_tn[2:]):
        one.add(part, most=5 if length is None else length)
    assert (one.gram_nn is None) == (length is not None)
    assert one.energy(left) == pytest.approx(expected, rel=1e-5)


def test_the_model_is_left_as_it_was(tmp_path):
    resident, config = make(tmp_path, "bert")
    resident.model.train()
    collect_inputs(resident, items_of(resident), config, tokens=5, seed=0)
    assert resident.model.training
    resident.model.eval()
    assert not any(layer._forward_pre_hooks for layer in resident.parameters.layers.values())


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_questions_of_many_choices_are_looked_at_too(tmp_path, family):
    base, targets = save_family(family, tmp_path / family)
    flat = {
        "model.source": str(base),
        "model.task": "multiple-choice",
        "lora.targets": targets,
        "train.eval-batch-size": 2,
    }
    config = RunConfig.from_flat(flat)
    resident = load_resident(config, [])
    items = resident.task.prepare(QUESTIONS)

    found = collect_inputs(resident, items, config, tokens=10**6, seed=0)

    assert [len(one.layers) for one in found] == [2, 2]
    assert found[0].tokens == sum(item["length"] for item in items)


def test_an_image_is_one_row():
    task = "image-classification"
    flat = {"model.task": task, "model.source": NETS[task], "lora.targets": "hidden"}
    config = RunConfig.from_flat({**flat, "train.eval-batch-size": 2})
    resident = load_resident(config, TASKS[task])
    items = resident.task.prepare(records(task, 5))

    (found,) = collect_inputs(resident, items, config, tokens=3, seed=0)

    rows = by_hand(resident, items)["hidden"]
    assert found.tokens == len(found.h_tn) == 3
    for row in found.h_tn.double():
        assert float((rows - row).norm(dim=1).min()) < 1e-5 * float(row.norm())


def test_a_layer_that_sees_no_row_a_token_is_named(tmp_path):
    resident, config = make(tmp_path, "bert", "query,pooler.dense")
    if "bert.pooler.dense" not in resident.parameters.layers:
        pytest.fail(f"the pooler has no pair: {list(resident.parameters.layers)}")
    with pytest.raises(ConfigError, match="pooler"):
        collect_inputs(resident, items_of(resident), config, tokens=5, seed=0)
