import pytest

from fedapp.atomic_folder import write_folder


def put(text):
    def fill(folder):
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text)
        (folder / "sub" / "file").chmod(0o600)

    return fill


def break_down(folder):
    (folder / "half").write_text("half")
    raise OSError("disk full")


def test_a_folder_is_created_and_replaced_as_a_whole(tmp_path):
    target = tmp_path / "deep" / "folder"
    write_folder(target, put("old"))
    (target / "stray").touch()
    write_folder(target, put("new"))
    assert (target / "sub" / "file").read_text() == "new"
    assert not (target / "stray").exists()
    assert [path.name for path in target.parent.iterdir()] == ["folder"]
    assert target.stat().st_mode & 0o777 == 0o755
    assert (target / "sub" / "file").stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_what_was_there(tmp_path):
    target = tmp_path / "folder"
    with pytest.raises(OSError, match="disk full"):
        write_folder(target, break_down)
    assert list(tmp_path.iterdir()) == []
    write_folder(target, put("old"))
    with pytest.raises(OSError, match="disk full"):
        write_folder(target, break_down)
    assert (target / "sub" / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_without_replacing_the_first_of_two_builders_wins(tmp_path):
    target = tmp_path / "folder"

    def second(folder):
        write_folder(target, put("first"), replace=False)  # another process is quicker
        put("second")(folder)

    write_folder(target, second, replace=False)
    assert (target / "sub" / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
