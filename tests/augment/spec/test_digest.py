"""The digest changes with every file of rules."""

import hashlib
import shutil

from augment.spec import resources as rules


def test_every_module_and_word_list_counts_and_nothing_else(tmp_path, monkeypatch):
    package = tmp_path / "augment"
    (package / "word_lists").mkdir(parents=True)
    monkeypatch.setattr(rules, "_PACKAGE", package)
    digest = rules.rules_digest.__wrapped__
    (package / "b.py").write_bytes(b"two")
    (package / "word_lists" / "a.txt").write_bytes(b"three\n")
    by_hand = hashlib.sha256(b"b.py\0003\0two" + b"word_lists/a.txt\0006\0three\n").hexdigest()
    assert digest() == by_hand[:12]
    shutil.copytree(package, tmp_path / "elsewhere")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "b.pyc").write_bytes(b"compiled")
    assert digest() == by_hand[:12]
    for path, content in (
        (package / "b.py", b"two "),
        (package / "word_lists" / "a.txt", b"4"),
        (package / "c.py", b""),
    ):
        before = digest()
        path.write_bytes(content)
        assert digest() != before
    monkeypatch.setattr(rules, "_PACKAGE", tmp_path / "elsewhere")
    assert digest() == by_hand[:12]  # wherever it lies
