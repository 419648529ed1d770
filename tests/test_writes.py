"""Hold that all of the product's writes go through one module, `pretrain.common.files`."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WRITES = {
    "write_text", "write_bytes", "unlink", "touch", "rmdir", "mkdir", "makedirs", "symlink_to", "hardlink_to",
    "rename", "rmtree", "copytree", "copyfile", "copy2", "move", "save_file", "save_pretrained", "fsync",
    "ftruncate", "truncate", "mkdtemp", "mkstemp", "TemporaryDirectory", "NamedTemporaryFile", "memmap",
    "savez", "savetxt", "tofile",
}  # fmt: skip
_MAY_WRITE = re.compile(rf"\b(open|replace|save|{'|'.join(sorted(WRITES))})\(|\bos\.")
OF_OS = {"replace", "remove", "link", "symlink", "open", "write"}

# Module -> what it may do by itself, and why. A reason that ends in "hidden folder" means that
# `files.put_in_place` syncs it and gives it its name.
MAY = {
    "pretrain.common.files": ("*", "it is the module"),
    "pretrain.common.folder_lock": (
        "write_text unlink rename os.link",
        "the files of a lock are a protocol of their own, and nothing is kept in them",
    ),
    "pretrain.common.cli": ("os.open", "of /dev/null, when the reader of a pipe has gone"),
    "pretrain.doctor.storage": ("*", "tries what the disk can do, and leaves nothing"),
    "pretrain.watch.ending": (
        "write_text os.open rmtree rename mkdir",
        "last words of a run that ends: they must not wait for a disk",
    ),
    "pretrain.watch.deadline": ("open write_bytes", "the same"),
    "pretrain.watch.heartbeat": ("os.open", "marks of life, each second"),
    "pretrain.prepare.progress": ("write_text unlink", "marks of life, twice a second"),
    "pretrain.start.folder": ("rmdir", "of a run folder that is empty"),
    "pretrain.step.optimizer": ("mkdir open unlink", "the lock of a compiler's cache"),
    "pretrain.api": ("TemporaryDirectory write_text", "a recipe for the command that it starts"),
    "pretrain.sweep.runs": ("open", "the log of a command, as it comes"),
    "pretrain.common.processes": ("open", "the same"),
    "finetune.evaluate.running": ("open", "the same"),
    "pretrain.prepare.work_folder": ("memmap", "reads only"),
    "pretrain.export.folder": ("copytree save_pretrained save_file", "libraries, into a hidden folder"),
    "pretrain.export.universal": ("os.link save", "into a hidden folder; torch, to a file of the module"),
    "pretrain.export.sentence_transformers": ("save_file", "a library, into a hidden folder"),
    "pretrain.data.tokenizer": ("save_pretrained", "a library, into a hidden folder"),
    "finetune.baselines": ("save_pretrained", "a library, into a hidden folder"),
    "augment.convert_weights": ("save_file", "a library, into a hidden file, as put_file_in_place takes it"),
}


def writes_of(path: Path) -> set[str]:
    """Return what a module does to the file system by itself, by the names of the calls."""
    found: set[str] = set()
    text = path.read_text("utf-8")
    if not _MAY_WRITE.search(text):
        return found  # most of them: parsing takes longer than all else here
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        of = getattr(getattr(node.func, "value", None), "id", "")
        constants = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        constants += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        if name == "open" and of not in ("os", "files"):
            if any(
                isinstance(c, str) and set(c) <= set("rwaxbt+") and set(c) & set("wax+") for c in constants
            ):
                found.add("open")
        elif of == "os" and name in OF_OS:
            reads = name == "open" and ast.unparse(node.args[1]) == "os.O_RDONLY"
            found |= set() if reads or name == "write" else {f"os.{name}"}
        elif name == "replace" and len(node.args) == 1 and not node.keywords:
            found.add("Path.replace")  # of str it has two arguments
        elif (name in WRITES and of != "files") or (
            name == "save" and of in ("np", "torch") and _is_path(node)
        ):
            found.add(name)
    return found


def _is_path(node: ast.Call) -> bool:
    """Return whether a library saves to a path, and not into a buffer."""
    return not any(ast.unparse(argument) == "buffer" for argument in node.args)


def test_only_one_module_writes():
    broken, unused = [], []
    for package in ("pretrain", "finetune", "augment"):
        for path in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            allowed, _ = MAY.get(module, ("", ""))
            done = writes_of(path)
            if allowed != "*":
                broken += [f"{module} calls {name}" for name in sorted(done - set(allowed.split()))]
                unused += [f"{module}: {name}" for name in sorted(set(allowed.split()) - done)]
    assert not broken, "write by pretrain.common.files"
    assert not unused, "exceptions that nothing needs"


def test_writes_are_found(tmp_path):
    module = tmp_path / "module.py"
    for line, name in {
        'open(path, "w")': "open",
        'open(path, mode="ab")': "open",
        'path.open("x")': "open",
        "os.open(path, os.O_WRONLY)": "os.open",
        "os.replace(a, b)": "os.replace",
        "partial.replace(path)": "Path.replace",
        "shutil.rmtree(a)": "rmtree",
        "torch.save(state, path)": "save",
    }.items():
        module.write_text(line)
        assert writes_of(module) == {name}, line
    for line in ('open(path, "rb")', 'text.replace("a", "b")', "files.replace(path, data)", "open(path)"):
        module.write_text(line)
        assert not writes_of(module), line
