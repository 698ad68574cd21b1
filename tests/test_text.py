import json

import pytest

from cacseg._text import parse, parse_json, read_csv, read_json, shorten


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 200_000])
def test_json_that_is_nested_too_deeply_is_a_value_error(tmp_path, content):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(content)
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is no JSON \(nested too deeply\).*Do this"):
        read_json(tmp_path / "a.json", dict, remedy="Do this.")


def test_other_faults_of_a_parser_are_its_own():
    with pytest.raises(KeyError):
        parse({}.__getitem__, "a")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_json_in_any_unicode(tmp_path, encoding):
    (tmp_path / "a.json").write_text('{"\u00fc": 1}', encoding=encoding)
    assert read_json(tmp_path / "a.json", dict) == {"\u00fc": 1}


@pytest.mark.parametrize("content", [b"", b"{", b"\0\0\0\0", b"\xff", b'{"a": "\xe9"}', b"9" * 10_000])
def test_damaged_json_is_named(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.json is damaged: it is no JSON"):
        read_json(tmp_path / "a.json", dict)


def test_json_of_another_kind(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(["x" * 500]))
    with pytest.raises(ValueError, match=r"a\.json is damaged: it must hold an object; got \['xx.*\.\.\."):
        read_json(tmp_path / "a.json", dict)
    assert read_json(tmp_path / "a.json", list) == ["x" * 500]


def test_the_rows_of_a_damaged_table(tmp_path):
    path = tmp_path / "a.csv"
    for content, rows in (
        (b"", []),
        (b"a,b\n1,2\n3,", [["a", "b"], ["1", "2"]]),
        (b"\xef\xbb\xbfa,b\r\n1,2\r\n", [["a", "b"], ["1", "2"]]),
        (b"a\n\0\0\0\0\n1\n", [["a"], [], ["1"]]),
        (b"a\n" + b'"' + b"x" * 200_000 + b"\n", [["a"]]),
        (b"\xff\n", [["\udcff"]]),
    ):
        path.write_bytes(content)
        assert read_csv(path) == rows


def test_values_in_errors_are_short():
    assert shorten([1]) == "[1]"
    assert len(shorten("x" * 1000)) == 103
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert shorten(deep) == "[[[[[[[...]]]]]]]"
