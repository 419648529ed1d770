"""What is prose, and where the prose of the installed packages is."""

import sysconfig

from pretrain.prepare.sentences import count_words, is_prose
from pretrain.prepare.sources.embedded import python_files


def test_prose():
    assert is_prose("Four words are here.", 4, 0.6) and not is_prose("Three words here.", 4, 0.6)
    assert not is_prose("12 34 = 56 | 78 a b", 4, 0.6)
    assert is_prose("今天天气很好", 4, 0.6) and count_words("今天天气") == 4
    assert is_prose("Это четыре слова здесь", 4, 0.6)


def test_a_heading_of_wiki_markup_is_no_prose():
    assert not is_prose("= = Life cycle of the lobster = =", 4, 0.6)
    assert is_prose("It holds that a = b = c for all of them", 4, 0.6)


def test_the_package_files_are_those_with_text(tmp_path, monkeypatch):
    """By their size, and by names that are no test's; a name in both folders of packages counts once."""
    pure, built = tmp_path / "pure", tmp_path / "built"
    most = 4 << 20
    sizes = {
        "b/small.py": 199, "b/least.py": 200, "b/most.py": most, "b/over.py": most + 1,
        "a-1.dist-info/METADATA": 300, "a/METADATA": 300, "a/data.txt": 300, "a/__pycache__/c.py": 300,
        "a/tests/t.py": 300, "test/t.py": 300, "a/testing/t.py": 300, "a/_test_utils/t.py": 300,
        "a/test_c.py": 300, "a/conftest.py": 300, "a/attest.py": 300, "a/contest/c.py": 300,
    }  # fmt: skip
    for folder in (pure, built):
        for name, size in sizes.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                stream.truncate(size + (folder == built))
    (built / "z.py").write_bytes(b"#" * 500)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"purelib": str(pure), "platlib": str(built)})
    python_files.cache_clear()
    try:
        found = python_files()
    finally:
        python_files.cache_clear()
    of_pure = ["a-1.dist-info/METADATA", "a/attest.py", "a/contest/c.py", "b/least.py", "b/most.py"]
    # the smallest is long enough in the other folder
    expected = [(str(pure / name), sizes[name]) for name in of_pure]
    assert found == (*expected, (str(built / "b/small.py"), 200), (str(built / "z.py"), 500))
