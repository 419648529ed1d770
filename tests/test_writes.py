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
        "unlink rename os.link",
        "the files of a lock are a protocol of their own, and nothing is kept in them",
    ),
    "pretrain.watch.ending": (
        "write_text os.open rmtree rename mkdir",
        "last words of a run that ends: they must not wait for a disk",
    ),
    "pretrain.watch.deadline": ("open write_bytes", "the same"),
    "pretrain.watch.heartbeat": ("os.open", "marks of life, each second"),
    "pretrain.api": ("TemporaryDirectory write_text", "a recipe for the command that it starts"),
    "pretrain.step.frozen_vectors": (
        "os.open ftruncate memmap",
        "rows that ranks write at the same time, each with its checksum; what is not whole is made again",
    ),
    "pretrain.export.folder": (
        "copytree save_pretrained save_file",
        "libraries, into a hidden folder",
    ),
    "pretrain.commands.export": ("TemporaryDirectory", "of an export on trial"),
    "pretrain.commands.record.checking": ("TemporaryDirectory", "of what is made again to be compared"),
    "pretrain.export.sentence_transformers": ("save_file", "a library, into a hidden folder"),
    "pretrain.data.remote": ("TemporaryDirectory", "of a manifest that is not checked yet"),
    "pretrain.data.tokenizer": ("save_pretrained", "a library, into a hidden folder"),
    "finetune.derived": ("save_pretrained", "a library, into a hidden folder"),
    "finetune.judge.averaging": ("save_file", "a library, into a hidden folder"),
    "pretrain.commands.convert": ("save_file", "a library, into a hidden file"),
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


# Test below `tests` that lets each operation fail, stop or lose power -> modules whose writes it tries.
TRIED_BY = {
    "pretrain/prepare/cache/test_cache_faults.py": "pretrain.prepare.cache.run",
    "pretrain/checkpoint/test_save_faults.py": "pretrain.checkpoint.folder_writer",
    "pretrain/common/test_write_faults.py": "pretrain.start.checkpoints pretrain.start.resume",
    "pretrain/data/test_shard_faults.py": "pretrain.data.shard_writer pretrain.data.tokenizer "
    "pretrain.prepare.buckets",
    "pretrain/export/test_export_faults.py": "pretrain.export.folder pretrain.export.sentence_transformers "
    "pretrain.export.sums",
    "pretrain/prepare/test_merge_faults.py": "pretrain.prepare.jobs pretrain.prepare.run "
    "pretrain.prepare.stages.merge",
    "pretrain/data/test_remote_faults.py": "pretrain.data.remote",
    "pretrain/telemetry/test_metrics_faults.py": "pretrain.telemetry.run",
    "pretrain/commands/test_command_faults.py": "pretrain.commands.mine pretrain.commands.convert",
    "finetune/glue/test_run_faults.py": "finetune.glue.store finetune.tuning.finetuning",
    "finetune/judge/test_writing_faults.py": "finetune.judge.heldout finetune.judge.averaging",
    "finetune/test_result_faults.py": "finetune.derived finetune.encoders.kept_vectors "
    "finetune.results pretrain.commands.sweep.table",
}
TRIED_ALONE = {
    "pretrain.checkpoint.store": "one rename",
    "pretrain.telemetry.trackers": "one rename of each folder",
    "finetune.report.page": "each file is read by itself",
    "pretrain.commands.record.board": "record.json is the last of a record; the table is made of all records",
    "pretrain.commands.record.training": "seed-N.json says that a run is whole, else it begins anew",
}
"""What one operation of `pretrain.common.files` holds together, which has its tests, and why it is enough."""
_ONE_FILE = {"replace", "replace_durably", "write_atomically"}
_MORE = {
    "put_in_place", "recover", "copy_tree", "create", "sync", "write_durably", "open_partial", "AppendedFile",
    "rename_durably", "remove_durably", "write_tensors", "write_manifest",
}  # fmt: skip
_OF = {"pretrain.common.files", "pretrain.data.shard_writer", "finetune.tuning.finetuning"}


def writes_several(path: Path) -> bool:
    """Return whether a module's writes are more than single files, each replaced by itself."""
    tree = ast.parse(path.read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {name.name for node in imports if node.module in _OF for name in node.names}
    # `files.replace(...)` after `from pretrain.common import files`
    modules = {name.name for node in imports for name in node.names if f"{node.module}.{name.name}" in _OF}
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        targets = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
        called = [one.id for one in targets if isinstance(one, ast.Name) and one.id in imported]
        called += [
            one.attr
            for one in targets
            if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id in modules
        ]
        if set(called) & _MORE or sum(name in _ONE_FILE for name in called) > 1:
            return True
    return False


def test_each_writer_of_several_files_is_tried_with_faults():
    """One that writes a single file is tried with `replace_durably`."""
    listed = {module: test for test, modules in TRIED_BY.items() for module in modules.split()}
    for test in set(listed.values()):
        assert "require_all(" in (ROOT / "tests" / test).read_text("utf-8"), test
    found = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("pretrain", "finetune", "augment")
        for path in (ROOT / package).rglob("*.py")
        if writes_several(path)
    } - {"pretrain.common.files"}
    assert found <= listed.keys() | TRIED_ALONE.keys(), "try it with write_faults"
    assert TRIED_ALONE.keys() <= found, "needs no exception"
