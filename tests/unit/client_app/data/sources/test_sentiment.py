import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from client_app.data.sources import sentiment
from fedapp.errors import DataError


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def install(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    content = archive({sentiment.INNER: archive(files)})
    sentiment.archive_path().parent.mkdir(parents=True)
    sentiment.archive_path().write_bytes(content)
    monkeypatch.setattr(sentiment, "SHA256", hashlib.sha256(content).hexdigest())


def test_strong_ratings_become_labels_by_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {name: b"" for name in sentiment.SOURCES.values()}
    lines["tweets_GroundTruth.txt"] = (
        b"\xef\xbb\xbf1\t0.5\tgood\tday\xe2\x80\xa8and night\r\n"
        b"2\t-0.49\tso so\r\n3\t-3.1\t bad \r\n4\t2\t \r\n"
    )
    lines["movieReviewSnippets_GroundTruth.txt"] = b"1_1\t-0.5\tpoor\r\n"
    install(monkeypatch, {f"hutto_ICWSM_2014/{name}": text for name, text in lines.items()})

    table = sentiment.read_sentiment()

    assert table.sites == ["Films", "Tweets", "Tweets"]
    assert table.strata == ["negative", "positive", "negative"]
    assert (table.contents[0], table.contents[2]) == ("poor", "bad")
    assert table.contents[1] == "good\tday\u2028and night"


def test_an_absent_archive_names_the_command(home: Path) -> None:
    with pytest.raises(
        DataError, match=r"pip download .* --dest \S+ vaderSentiment==3.3.2"
    ) as caught:
        sentiment.read_sentiment()

    assert str(home) not in str(caught.value)


def test_another_archive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {})
    with sentiment.archive_path().open("ab") as stream:
        stream.write(b"x")

    with pytest.raises(DataError, match="unexpected SHA-256"):
        sentiment.read_sentiment()


def test_a_member_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"hutto_ICWSM_2014/other.txt": b""})

    with pytest.raises(DataError, match="lacks the file hutto_ICWSM_2014/nytEditorial"):
        sentiment.read_sentiment()
