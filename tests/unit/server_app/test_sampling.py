from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from server_app.sampling import check_sites, cohort_size, needed_replies, sample

SITES = [f"site-{number}" for number in range(20)]
Settings = Callable[..., RunConfig]


def test_a_draw_depends_on_seed_and_round_only() -> None:
    config = RunConfig.from_flat({"federation.fraction": 0.3, "seed": 1})
    draws = {round: sample(SITES, config, round) for round in range(1, 30)}

    assert sample(reversed(SITES), config, 7) == draws[7]
    assert all(len(draw) == 6 == len(set(draw)) and draw == sorted(draw) for draw in draws.values())
    assert len({tuple(draw) for draw in draws.values()}) > 20
    other = config.with_changes({"seed": 2})
    assert any(sample(SITES, other, round) != draw for round, draw in draws.items())


def test_every_site_gets_its_turn_about_equally_often() -> None:
    config = RunConfig.from_flat({"federation.fraction": 0.3})
    counts = dict.fromkeys(SITES, 0)
    for round in range(1, 1001):
        for site in sample(SITES, config, round):
            counts[site] += 1

    # Binomial(1000, 0.3): five standard deviations are 72.
    assert all(abs(count - 300) < 72 for count in counts.values())


@given(
    candidates=st.integers(1, 500),
    fraction=st.floats(0, 1, exclude_min=True),
)
def test_a_cohort_is_never_empty_and_never_too_large(candidates: int, fraction: float) -> None:
    assert 1 <= cohort_size(candidates, fraction) <= candidates
    assert abs(cohort_size(candidates, fraction) - max(1, candidates * fraction)) <= 0.5


def test_held_out_sites_are_never_drawn() -> None:
    config = RunConfig.from_flat({"federation.held-out": "site-3,site-4"})

    drawn = sample(SITES, config, 1)

    assert len(drawn) == 18
    assert not {"site-3", "site-4"} & set(drawn)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"federation.held-out": "site-99"}, "names 'site-99', but the sites are site-0"),
        ({"federation.held-out": ",".join(SITES)}, "leave at least one to train"),
        (
            {"federation.min-replies": 11, "federation.fraction": 0.5},
            "min-replies is 11, but only 10 of 20 sites train",
        ),
    ],
)
def test_settings_that_cannot_be_met_are_refused(changes: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        check_sites(SITES, RunConfig.from_flat(changes))


def test_zero_minimum_means_all() -> None:
    assert needed_replies(7, RunConfig()) == 7
    assert needed_replies(7, RunConfig.from_flat({"federation.min-replies": 3})) == 3
