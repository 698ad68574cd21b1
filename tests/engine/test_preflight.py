import pytest

from cacseg.engine.preflight import check_folder


def test_a_folder_with_only_a_lock_and_an_unfinished_file_is_started_anew(tmp_path):
    for name in (".lock", ".123.456.tmp", "train.log"):
        (tmp_path / name).touch()
    check_folder(tmp_path, resume=False)
    (tmp_path / ".mine.tmp").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        check_folder(tmp_path, resume=False)
