"""Every fault at every operation of what all writes are made of."""

from pathlib import Path

import pytest
from write_faults import Subject, require_all, restore, state_of

from pretrain.common import files

OLD, NEW = b"old" * 400, b"new content" * 500


def content_is(name: str):
    def find(folder: Path) -> str:
        path = folder / name
        return {OLD: "old", NEW: "new"}[path.read_bytes()] if path.exists() else "old"

    return find


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_is_replaced(tmp_path, exists):
    subject = Subject(
        act=lambda folder: files.replace_durably(folder / "file", NEW),
        find=content_is("file"),
        make=lambda folder: (folder / "file").write_bytes(OLD) if exists else None,
    )
    cases = require_all(subject, tmp_path, least=5)
    assert cases.found == {"old", "new"}


def test_a_file_in_a_new_folder(tmp_path):
    def act(folder: Path) -> None:
        files.make_folder(folder / "a" / "b")
        files.replace_durably(folder / "a" / "b" / "file", NEW)

    require_all(Subject(act, content_is("a/b/file")), tmp_path, least=9)


TREES = {
    "old": {"a": b"1", "in": None, "in/b": b"2" * 300},
    "new": {"a": b"3", "in": None, "in/c": b"4" * 300},
}


def tree_is(name: str, may_lack: bool = False):
    def find(folder: Path) -> str:
        if may_lack and not (folder / name).exists():
            return "old"
        found = state_of(folder / name)
        return next(which for which, state in TREES.items() if state == found)

    return find


def place(folder: Path) -> None:
    files.remove_tree(folder / ".hidden")
    try:
        restore(TREES["new"], folder / ".hidden")
        files.put_in_place(folder / ".hidden", folder / "tree")
    finally:
        files.discard(folder / ".hidden")


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_put_in_place(tmp_path, exists):
    def make(folder: Path) -> None:
        if exists:
            restore(TREES["old"], folder / "tree")

    cases = require_all(Subject(place, tree_is("tree", not exists), make), tmp_path, least=12)
    assert cases.found == {"old", "new"}
