"""The commands and flags that messages name are there, as those of the pages are."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from test_docs import CLEARLY, NO_WORDS, PACKAGES, ROOT, cli_of, commands_of

from pretrain.common.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.* found in sys.modules after import:RuntimeWarning")
COMMAND = re.compile(
    r"(?:python -m ((?:augment|pretrain|finetune)[\w.]*)|\bclearly ([a-z][a-z-]*))([^,;:`()\n]*)"
)
FLAG = re.compile(r"(?<![\w-])--(?!(?:help|version|flag)\b)([a-z][\w.-]*\w)")
FOREIGN = re.compile(r"\b(srun|deepspeed|torchrun|pip install|tensorboard|public code) ")
"""What has flags of its own."""
MAIN = re.compile(r'^if __name__ == "__main__":\n(    .*\n)*    cli\.run\(', re.MULTILINE)


def module_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__main__")


MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
COMMANDS = {module_of(path) for path in MODULES if MAIN.search(path.read_text("utf-8"))}


def messages(path: Path) -> list[str]:
    """The texts of three words or more in a module, docstrings apart, with X for what an f-string puts in."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    apart = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    apart |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    found = []
    for node in nodes:
        if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in apart:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            found.append(
                "".join(
                    str(getattr(part, "value", "")) if isinstance(part, ast.Constant) else "X"
                    for part in parts
                )
            )
    return [text for text in found if len(text.split()) > 2]


@cache
def has_flag(module: str, flag: str) -> bool:
    for command in commands_of(module):
        try:
            command.read([f"--{flag}=x"])
        except UserError as error:
            if "unknown flag" in str(error):
                continue
        return True
    return False


def command_faults(module: str, words: list[str]) -> list[str]:
    """What is wrong with a command in a sentence, whose other words may follow."""
    if not importlib.util.find_spec(module):
        return [f"{module}: no such command"]
    functions, options = cli_of(module)
    first = words[0] if words and re.match("[a-z]", words[0]) else ""
    wrong = [first] if first and not functions and first not in set(options) - set(NO_WORDS) else []
    wrong += [f"--{flag}" for flag in FLAG.findall(" ".join(words)) if not has_flag(module, flag)]
    return [f"{module} has no {word}" for word in wrong]


def faults(text: str, path: Path) -> list[str]:
    """What is wrong with the commands and flags of a message.

    A flag is one of the command that the message names before it, of the command that the module belongs to,
    or of a preparation or training.
    """
    found = []
    for module, word, rest in COMMAND.findall(text):
        if not module and "augment" in path.parts:  # lists of adverbs
            continue
        found += command_faults(module or CLEARLY.get(word, (f"clearly_{word}",))[0], rest.split())
    module = module_of(path)
    own = {one for one in COMMANDS if f"{module}.".startswith(f"{one}.")} or COMMANDS
    flags = [] if FOREIGN.search(text) else FLAG.findall(COMMAND.sub("", text))
    for flag in flags:
        if not any(has_flag(one, flag) for one in ("pretrain.prepare", "pretrain.main", *own)):
            found.append(f"{module}: there is no --{flag}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_the_commands_of_messages_are_there_with_their_flags(package):
    modules = [path for path in MODULES if path.is_relative_to(ROOT / package)]
    wrong = [fault for path in modules for text in messages(path) for fault in faults(text, path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "message,fault",
    [
        ("the same command without --gather makes them", "finetune.glue: there is no --gather"),
        ("see python -m finetune.nothing", "finetune.nothing: no such command"),
        ("clearly evaluate RUN makes some", "clearly_evaluate: no such command"),
        ("`python -m finetune.data chek DIR` lists all", "finetune.data has no chek"),
        ("clearly sweep X --row 2, for --eval-data", "pretrain.commands.sweep has no --row"),
    ],
)
def test_a_wrong_command_is_found(message, fault):
    assert faults(message, ROOT / "finetune/glue/__main__.py") == [fault]


def test_what_a_message_is(tmp_path):
    lines = ['"""No message: --a."""', 'x = f"give --{y} or " "--b"', "z = '--c d'"]
    (tmp_path / "a.py").write_text("\n".join(lines))
    assert messages(tmp_path / "a.py") == ["give --X or --b"]
