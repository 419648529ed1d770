"""The pages: their links lead somewhere, and their commands name modules, files and flags that there are.

The commands of docstrings and batch scripts do so too.
"""

import ast
import importlib
import re
import runpy
import shlex
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from pretrain.clearly import COMMANDS as CLEARLY
from pretrain.common import cli
from pretrain.common.errors import UserError

# A module that is started by `runpy` may have been imported before.
pytestmark = pytest.mark.filterwarnings("ignore:.* found in sys.modules after import:RuntimeWarning")
ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *ROOT.glob("configs/*.md"), *ROOT.glob("docs/**/*.md")]
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
PACKAGES = ("augment", "pretrain", "finetune")
NO_WORDS = ("keys", "first", "more_help", "outlives_readers")
"""Options of `cli.run` that are no word of a command."""


@cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", text_of(page))


# ---- links ----


def links_of(page: str) -> list[str]:
    """The targets of a page's links and pictures."""
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", INLINE.sub("", prose_of(page).replace("\n", " ")))


@cache
def anchors_of(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    found: set[str] = set()
    for heading in headings:
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        assert anchor not in found, f"{page}: two headings have the anchor {anchor}"
        found.add(anchor)
    return found


def test_anchors_are_githubs(monkeypatch):
    monkeypatch.setitem(globals(), "prose_of", lambda page: "# A `b_c`, d: [e](f.md)?\n## 2. Two  words\n")
    assert anchors_of.__wrapped__("") == {"a-b_c-d-e", "2-two--words"}


def leads_somewhere(page: str, link: str) -> bool:
    """Whether the page that a link names, and its heading, are there; other hosts are not asked."""
    if re.match(r"https?://", link):
        return True
    name, _, anchor = link.partition("#")
    target = ((ROOT / page).parent / name).resolve() if name else ROOT / page
    return target.exists() and (not anchor or anchor in anchors_of(str(target.relative_to(ROOT))))


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    assert not [link for link in links_of(page) if not leads_somewhere(page, link)]


def test_a_broken_link_is_found():
    assert leads_somewhere("docs/log.md", "small_encoder.md#which-pooling")
    assert not leads_somewhere("docs/log.md", "small_encoder.md#which-poolings")
    assert not leads_somewhere("docs/log.md", "docs/results.md")


def test_every_page_is_linked_from_another():
    linked = {
        ((ROOT / page).parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in links_of(page)
        if "://" not in link and link.partition("#")[0]
    }
    assert {ROOT / page for page in PAGES} - linked <= {ROOT / "README.md", ROOT / "docs" / "site" / "api.md"}


# ---- commands ----


def simple_commands(text: str) -> list[list[str]]:
    """The words of each command in a text of the shell: comments, pipes and continued lines are read, and
    [words in brackets], which a reader may leave out, are left out."""
    found = []
    text = re.sub(r"\[[^\]\n]*\]", "", text)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=";|&()")
        words.whitespace_split = True
        try:
            listed = list(words)
        except ValueError:  # an apostrophe: no command
            continue
        found += [
            list(part) for end, part in groupby(listed, lambda word: set(word) <= set(";|&()")) if not end
        ]
    return found


def test_commands_are_read_as_the_shell_reads_them():
    text = "A=1 python -m a --aug 'x|y' \\\n    b.txt; make c | less  # d\nit's"
    assert simple_commands(text) == [
        ["A=1", "python", "-m", "a", "--aug", "x|y", "b.txt"],
        ["make", "c"],
        ["less"],
    ]


def program_and_words(words: list[str]) -> tuple[str, list[str]] | None:
    """The module or file that a command starts, and what it is given; None for other commands."""
    for place, word in enumerate(words):
        after = words[place + 1 :]
        if word == "clearly" and after and re.match("(?!clearly)[a-z]", after[0]):
            return CLEARLY.get(after[0], (f"pretrain.clearly {after[0]}",))[0], after[1:]
        if word in ("python", "deepspeed") and after[:1] == ["-m"] and after[1:]:
            return after[1], after[2:]
        if word in ("python", "deepspeed") and after and after[0].endswith(".py"):
            return after[0], after[1:]
        if word.endswith("slurm/pretrain_clear.sh"):
            return "pretrain.main", after
        if word.endswith("slurm/prepare_data.sh"):
            return "pretrain.prepare", after
        for script, module in (("sweep", "pretrain.commands.sweep"), ("finetune_glue", "finetune.glue")):
            if word.endswith(f"slurm/{script}.sh") and "--" in after:
                return module, after[after.index("--") + 1 :]
    return None


@cache
def cli_of(module: str) -> tuple[tuple, dict]:
    """What a module gives `cli.run` when it is started."""
    given: list[tuple[tuple, dict]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "run", lambda *words, **options: given.append((words, options)))
        runpy.run_module(module, run_name="__main__")
    return given[0]


@cache
def commands_of(module: str) -> list[cli.Command]:
    """The commands of a module: one, or one for each word that it takes first."""
    functions, options = cli_of(module)
    keys, first = options.get("keys", tuple), options.get("first", ())
    functions += tuple(function for word, function in options.items() if word not in NO_WORDS)
    return [cli.Command(function, module, keys(), first) for function in functions]


def command_of(module: str, words: list[str]) -> tuple[cli.Command, list[str]]:
    """The command that a module would run, as `cli.run` finds it, and its words."""
    named = [word for word in cli_of(module)[1] if word not in NO_WORDS]
    commands = commands_of(module)
    if words and words[0] in named:
        return commands[named.index(words[0]) - len(named)], words[1:]
    if len(commands) == len(named):
        raise UserError(f"{module} needs one of the words {', '.join(named)}")
    return commands[0], words


def missing_files(words: list[str]) -> list[str]:
    """The files of the project that words name and that are not there; a NAME stands for any."""
    folders = "|".join((*PACKAGES, "configs", "slurm", "tests", "docs"))
    named = [part for word in words for part in word.split(",")]
    named = [word for word in named if re.match(rf"(?:{folders})/[\w/.-]+\.\w+$", word)]
    return [word for word in named if not re.search("[A-Z]{2}", word) and not (ROOT / word).exists()]


def unknown_flags(script: str, words: list[str]) -> list[str]:
    """The flags that neither a script of the tests nor what the benchmarks share speaks of."""
    source = text_of(script) + text_of("tests/benchmarks/bench_helpers.py")
    flags = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    return [flag for flag in flags if not re.search(rf"\b{flag}\b", source)]


def faults(words: list[str], whole: bool) -> list[str]:
    """What is wrong with a command of a page.

    whole: without it, as for a command that is named in a sentence, required words and values may be left
    out; so they may where the page writes "...".
    """
    if "..." in words:
        words, whole = [word for word in words if word != "..."], False
    found = [f"{file}: no such file" for file in missing_files(words)]
    if words[:1] == ["make"]:
        targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
        found += [f"make {word}" for word in words[1:] if "=" not in word and word not in targets]
    program, given = program_and_words(words) or ("", [])
    if found or re.search(r"\$|[A-Z]{2}", program) or not program.startswith((*PACKAGES, "tests/")):
        return found
    if program.startswith("tests/"):
        return [f"{program} has no flag {flag}" for flag in unknown_flags(program, given)]
    module = program.removesuffix(".py").replace("/", ".")
    if " " in module or not importlib.util.find_spec(module):
        return [f"{module}: no such module"]
    if {"--help", "-h"} & set(given):
        return []
    try:
        command, left = command_of(module, given)
        command.read(left)
    except UserError as error:
        left_out = re.search("is missing|needs a value|needs one of the words", str(error))
        return [] if left_out and not whole else [f"{' '.join(words)}: {error}"]
    return []


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_are_there_with_their_flags(page):
    wrong = []
    for _, kind, block in FENCE.findall(text_of(page)):
        if kind in ("", "sh", "bash"):
            wrong += [fault for words in simple_commands(block) for fault in faults(words, whole=True)]
    for code in INLINE.findall(prose_of(page)):
        for words in simple_commands(" ".join(code.split())):
            wrong += faults(words, whole=False)
    assert not wrong, "\n".join(wrong)


def docstring_commands(path: Path) -> tuple[str, list[str]]:
    """The indented lines of a docstring, without the explanations beside them, and its inline code."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    indented = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(re.split(r"(?<=\S) {2,}", line)[0] for line in indented), INLINE.findall(text)


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_the_commands_of_docstrings_are_there_with_their_flags(package):
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        block, codes = docstring_commands(path)
        wrong += [fault for words in simple_commands(block) for fault in faults(words, whole=True)]
        for code in codes:
            for words in simple_commands(" ".join(code.split())):
                wrong += faults(words, whole=False)
    assert not wrong, "\n".join(wrong)


def test_the_commands_at_the_head_of_batch_scripts_are_there_with_their_flags():
    for path in sorted((ROOT / "slurm").iterdir()):
        block = re.sub(r"^(?!#   ).*\n|^#   ", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not [fault for words in simple_commands(block) for fault in faults(words, whole=True)], path


@pytest.mark.parametrize(
    "command,fault",
    [
        ("python -m pretrain.prepare --sauce a.txt --out b", "unknown flag --sauce"),
        ("python -m finetune.nothing RUN", "no such module"),
        ("srun --ntasks=1 clearly nothing", "clearly nothing: no such module"),
        ("deepspeed pretrain/main.py --config configs/none.yaml", "configs/none.yaml: no such file"),
        ("sbatch --nodes=4 slurm/pretrain_clear.sh --train.step 7", "unknown flag --train.step"),
        ("slurm/sweep.sh --gpus=1 -- FILE.yaml --nothing 1", "unknown flag --nothing"),
        ("python tests/benchmarks/bench_loader.py --nothing 1", "no flag nothing"),
        ("make nothing", "make nothing"),
    ],
)
def test_a_wrong_command_is_found(command, fault):
    (words,) = simple_commands(command)
    assert any(fault in found for found in faults(words, whole=True))


# ---- Python and YAML ----


@pytest.mark.parametrize("page", PAGES)
def test_python_and_yaml_of_a_page_can_be_read(page):
    for _, kind, block in FENCE.findall(text_of(page)):
        if kind == "yaml":
            assert yaml.safe_load(re.sub(r"^ *\.\.\.$", "", block, flags=re.MULTILINE))
        if kind != "python":
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in PACKAGES:
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
