"""The keyed digest of a site's records: what it depends on, and its key."""

import hashlib
import hmac
import multiprocessing
import stat
from dataclasses import replace

import pytest

from client_app import data_digest as module
from client_app.data import SiteData, load_site
from client_app.data_digest import KEY_FILE, data_digest
from fedapp.config import RunConfig

RECORDS = [{"text": f"note {i}", "label": i % 2} for i in range(6)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".cache" / "fedapp"


def site(records=RECORDS, at=(2, 4), name="north"):
    one, two = at
    splits = {"train": records[:one], "validation": records[one:two], "test": records[two:]}
    return SiteData(name, ["well", "ill"], splits)


def test_it_is_an_hmac_over_the_sorted_texts_and_labels(cache):
    digest = data_digest(site())

    def sha(text):
        return hashlib.sha256(text.encode()).digest()

    marks = sorted(sha(r["text"]) + sha(["well", "ill"][r["label"]]) for r in RECORDS)
    key = (cache / KEY_FILE).read_bytes()
    assert digest == hmac.new(key, b"".join(marks), "sha256").hexdigest()


def test_order_splits_and_the_order_of_the_labels_do_not_matter():
    turned = [{"text": r["text"], "label": 1 - r["label"]} for r in reversed(RECORDS)]

    assert data_digest(site(at=(1, 3))) == data_digest(site())
    assert data_digest(replace(site(turned), label_map=["ill", "well"])) == data_digest(site())


@pytest.mark.parametrize(
    "changed",
    [
        RECORDS[:-1],
        [*RECORDS, RECORDS[0]],
        [{"text": "note 9", "label": 0}, *RECORDS[1:]],
        [{"text": "note 0", "label": 1}, *RECORDS[1:]],
    ],
    ids=["one less", "one twice", "another text", "another label"],
)
def test_other_records_have_another_digest(changed):
    assert data_digest(site(changed)) != data_digest(site())


def test_another_seed_deals_the_same_records():
    one, two = (load_site(RunConfig(seed=seed), "Hungary") for seed in (0, 1))

    assert one.splits["test"] != two.splits["test"]
    assert data_digest(one) == data_digest(two)


def test_the_key_is_random_private_and_kept(cache):
    first = data_digest(site())
    key = cache / KEY_FILE

    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert data_digest(site()) == first
    assert [path.name for path in cache.iterdir()] == [KEY_FILE]
    key.unlink()
    assert data_digest(site()) != first


def test_processes_that_make_the_key_at_once_agree():
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        digests = pool.map(data_digest, [site()] * 4)

    assert set(digests) == {data_digest(site())}


@pytest.mark.parametrize("content", [None, b"", b"short"])
def test_without_a_key_that_can_be_kept_there_is_no_digest(cache, monkeypatch, caplog, content):
    if content is None:

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(module.tempfile, "mkstemp", refuse)
    else:
        cache.mkdir(parents=True)
        (cache / KEY_FILE).write_bytes(content)

    assert data_digest(site()) == ""
    assert "the key cannot be kept" in caplog.text
