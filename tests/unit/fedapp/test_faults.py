"""The plan of a rehearsal: who attacks when, what it is called, and what is refused."""

import pytest

from fedapp.config import RunConfig
from fedapp.errors import ConfigError
from fedapp.faults import ATTACKS, attackers, planned, rehearsal


def make(**flat):
    return RunConfig.from_flat({f"faults.{k.replace('_', '-')}": v for k, v in flat.items()})


def test_nobody_is_faulty_by_default():
    config = RunConfig()

    assert planned(config, "a", 1) == "none"
    assert attackers(config, 1) == {}
    assert rehearsal(config) == ""


def test_the_plan_names_sites_attack_and_first_round():
    config = make(sites="b,a", attack="ipm", from_round=3)

    assert attackers(config, 2) == {}
    assert attackers(config, 3) == {"a": "ipm", "b": "ipm"}
    assert planned(config, "c", 3) == "none"
    assert rehearsal(config).startswith(
        "REHEARSAL OF ATTACKS: a, b are faulty on purpose (ipm from round 3 on)"
    )


def test_of_several_attacks_one_is_drawn_for_every_site_and_round():
    config = make(sites="a,b", attack="sign-flip,random,none")

    drawn = [attackers(config, round) for round in range(1, 60)]
    assert {each.get("a") for each in drawn} == {"sign-flip", "random", None}
    assert any(each.get("a") != each.get("b") for each in drawn)
    assert drawn == [attackers(config, round) for round in range(1, 60)]
    assert "sign-flip or random, drawn every round, from round 1" in rehearsal(
        make(sites="a", attack="random,sign-flip")
    )


def test_every_attack_can_be_named_and_survives_the_wire():
    config = make(sites="a", attack=",".join(ATTACKS))

    assert config.faults.attack == ATTACKS
    assert RunConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("flat", "sentence"),
    [
        ({"attack": "flip"}, "unknown attack 'flip'; choose of none, additive"),
        ({"attack": "[" * 5000}, r"unknown attack '\[{77}\.\.\.'; choose of none, additive"),
        ({"attack": ""}, "expected at least one attack"),
        ({"delay": 16}, "faults.delay"),
        ({"from_round": 0}, "faults.from-round"),
    ],
)
def test_what_makes_no_sense_is_refused(flat, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make(**flat)


def test_a_site_that_never_trains_cannot_be_faulty():
    with pytest.raises(ConfigError, match="both name a, but a site that never trains"):
        RunConfig.from_flat({"faults.sites": "a,b", "federation.held-out": "a"})
