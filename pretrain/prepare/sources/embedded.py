"""The corpus that is always there: English prose from the documentation of the installed Python packages.

Docstrings are read with `ast` (nothing is imported or run), package descriptions from their metadata. What is
not prose is left out: examples, tables, parameter lists, signatures, markup. One module is one document.
"""

import ast
import functools
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path

from augment.text.cleaning import clean
from pretrain.prepare.sentences import split_sentences

_LARGEST_FILE = 4 << 20  # generated tables, not documentation
# A third of the parsing time is tests and code with hardly a docstring, for a sixteenth of the prose: left
# out.
_TESTS = re.compile(
    r"(?:^|[/\\])(?:tests?|testing|_?tests?_\w*)[/\\]|(?:^|[/\\])(?:test_[^/\\]*|conftest)\.py$"
)
_FEWEST_MARKS = 2e-4  # docstring quotes per character of code
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_FENCE = re.compile(r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)", re.S)
_MARKUP = (
    (re.compile(r"<[^<>\n]{1,200}>"), ""),  # HTML, and the targets of reST links
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r":[\w:.+-]+:`~?!?([^`<]+?)\s*(?:<[^`]*>)?`"), r"\1"),  # :class:`~x.Y`
    (re.compile(r"``([^`]+)``|`([^`]+)`_{0,2}"), lambda m: m[1] or m[2]),
    (re.compile(r"\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*"), lambda m: m[1] or m[2]),
    (re.compile(r"\s*\[\w{1,20}\]_"), ""),  # reST citations
)
_NOISE_LINE = re.compile(
    r"^(?:>>>|\.\.\.|\.\.\s|:\w|@|#+\s|[-=~^*+#|_`'\"]{3,}|[|+]|\$\s|\w[\w*., ]*\s:\s|\w+:$)"
)
_GOOGLE_ARGUMENT = re.compile(r"^\*{0,2}\w+\s*(?:\([^)]*\))?\s*:\s+(?=[A-Z])")
_BULLET = re.compile(r"^(?:[-*+•]|\d{1,2}[.)]|\(\w\))\s+")
_SENTENCE = re.compile(r"^[A-Z\"'][^{}<>=|\\^~_$%@#\[\]/*`]*[.!?][\"')]*$")
_CODE_LIKE = re.compile(r"\w\(\)|\w\.\w+\.\w|::|->|--\w|\b[a-z]+[A-Z]\w*\b.*\b[a-z]+[A-Z]\w*\b")
_COMMON_WORDS = (
    "the a an is are of to in for and or if this that it be with by on as not can will from which when you "
    "has have was we may should must at does"
)
_COMMON = frozenset(_COMMON_WORDS.split())


@functools.cache
def python_files() -> tuple[tuple[str, int], ...]:
    """Return (path, bytes) of the Python files and package descriptions of this environment.

    They are in the order of their paths below site-packages: the same packages give the same order anywhere.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for root in dict.fromkeys(sysconfig.get_paths()[key] for key in ("purelib", "platlib")):
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in files:
                if name.endswith(".py") or (name == "METADATA" and folder.endswith(".dist-info")):
                    path = os.path.join(folder, name)
                    relative = os.path.relpath(path, root)
                    size = os.stat(path).st_size
                    if 200 <= size <= _LARGEST_FILE and not _TESTS.search(relative):
                        sizes.setdefault(relative, (path, size))
    return tuple(sizes[name] for name in sorted(sizes))


def module_documents(stripe: int, stripes: int) -> Iterator[str]:
    """Yield the prose of every S-th module: one document a module, one paragraph a line, blank lines between
    docstrings.

    Yields an empty string for those, so that progress can be counted in modules.
    """
    for path, _ in python_files()[stripe::stripes]:
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield "\n\n".join(prose(text) if path.endswith(".py") else _description(text))


def prose(module: str) -> list[str]:
    """Return the prose in each of a module's docstrings, a paragraph a line; none when it does not parse."""
    if module.count('"""') + module.count("'''") < max(1, _FEWEST_MARKS * len(module)):
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    docstrings: list[str] = []
    for node in _documented(tree):
        body = node.body[0] if node.body else None
        value = getattr(body.value, "value", None) if isinstance(body, ast.Expr) else None
        if isinstance(value, str) and (paragraphs := prose_paragraphs(inspect.cleandoc(value))):
            docstrings.append("\n".join(paragraphs))
    return docstrings


def _documented(node: ast.AST) -> Iterator[_DOCUMENTED]:
    """Yield modules, classes and functions in source order; expressions hold no docstring."""
    if isinstance(node, _DOCUMENTED):
        yield node
    for child in getattr(node, "body", ()):
        if isinstance(child, ast.stmt):
            yield from _documented(child)
    for child in getattr(node, "orelse", ()) if isinstance(node, ast.If | ast.Try) else ():
        yield from _documented(child)


def _description(metadata: str) -> list[str]:
    body = message_from_string(metadata).get_payload()
    return prose_paragraphs(body) if isinstance(body, str) else []


def prose_paragraphs(documentation: str) -> list[str]:
    """Return the paragraphs of a docstring or README, of their English sentences alone."""
    text = _FENCE.sub("\n\n", documentation)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    found = (filter(is_english_sentence, split_sentences(clean(part))) for part in _paragraphs(text))
    return [joined for sentences in found if (joined := " ".join(sentences))]


def _paragraphs(text: str) -> Iterator[str]:
    """Yield runs of lines of one indentation; a bullet, a noise line or a deeper line ends the run."""
    lines: list[str] = []
    indentation = -1
    literal = -1  # indentation of the line that ended in "::"; deeper lines are a literal block
    for line in text.expandtabs().split("\n"):
        stripped = line.strip()
        depth = len(line) - len(line.lstrip())
        if literal >= 0 and stripped:
            if depth > literal:
                continue
            literal = -1
        bullet = _BULLET.match(stripped)
        argument = None if bullet else _GOOGLE_ARGUMENT.match(stripped)
        prefix = bullet or argument
        noise = not stripped or (not prefix and _NOISE_LINE.match(stripped))
        if lines and (noise or prefix or (depth != indentation and len(lines) > 1)):
            yield " ".join(lines)
            lines = []
        if stripped.endswith("::"):
            literal = depth
        if noise:
            continue
        lines.append(stripped[prefix.end() :] if prefix else stripped)
        indentation = depth
    if lines:
        yield " ".join(lines)


def is_english_sentence(sentence: str) -> bool:
    """Return whether a clean sentence reads as English prose.

    It opens and closes as a sentence, has words that English cannot do without, and no code or table.
    """
    if not 24 <= len(sentence) <= 600 or not _SENTENCE.match(sentence) or _CODE_LIKE.search(sentence):
        return False
    words = sentence.lower().split()
    if len(words) < 5 or not _COMMON.intersection(words):
        return False
    return sum(map(str.isalpha, sentence)) >= 0.72 * len(sentence)
