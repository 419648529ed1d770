"""One command line for every command: a function's signature is its flags, its docstring is their help.

    def main(model: str, *, tasks: Names = (), seeds: Count = 1, sweep: bool = False) -> int: ...
    cli.run(main)                        clearly WORD MODEL --tasks a,b --sweep
    cli.run(check=check, fetch=fetch)    clearly WORD check ...

Parameters before the `*` may be given as bare words, the others are flags. Annotations say how a text is read
(`parse_value`, then pydantic); a parameter annotated with a pydantic model stands for the model's
fields, each a flag. Fire calls the function, this module checks the words first: fire takes a wrong flag for
the next call, `subs,reorder` for a tuple and `2026_11` for a number.
"""

import inspect
import itertools
import os
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Annotated, Any

import fire
from fire.decorators import SetParseFn
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from augment.core.errors import AugmentationError, excerpt
from augment.core.own_code import allow
from pretrain.common import error_output
from pretrain.common.credentials import require_no_credentials
from pretrain.common.errors import UserError
from pretrain.common.files import is_of_disk, require_writable, require_writable_file
from pretrain.common.program import program
from pretrain.common.typed_values import Flag, nearest, parse_value

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]
Names = tuple[str, ...]
"""Words between commas; of a function's own parameter also several flags."""
OutFile = Annotated[Path, "a file to write"]
"""Of the parameter `out`, which is a folder else: a file, in a folder that may have to be made."""

_TRUST = "run code files that a recipe or a run names, too: else those that this command names (docs/runs.md)"
SHOWN = 10
"""Flags on the short help page."""
WIDTH = 80
"""Columns of a help page."""

LARGE_LIBRARIES = {"torch", "transformers", "datasets", "spacy", "scipy", "sklearn", "datatrove"}
"""Imports of these take seconds, on a busy machine or a network disk a minute."""


class SayWhatLoads(MetaPathFinder):
    """Print one line, on stderr, when the first large library is imported; find no module itself."""

    said = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname in LARGE_LIBRARIES and not self.said:
            self.said = True
            print(f"{program()}: loading {fullname} and other libraries ...", file=sys.stderr, flush=True)


def flags_of(model: type[BaseModel]) -> list[Flag]:
    """Return the flags that a flat model's fields are, its own before those that it inherits."""
    names = sorted(model.model_fields, key=lambda name: name not in model.__annotations__)
    return [Flag.of_field(name, model.model_fields[name]) for name in names]


class Command:
    """A function as a command.

    name: what is typed to start it, as "clearly sweep plan". keys: the flags of the function's `**`
    parameter, which is given their texts as they were typed. first: the flags that the short help shows; the
    signature's first ten. more_help: returns the end of the full help.
    """

    def __init__(
        self,
        function: Callable,
        name: str,
        keys: Iterable[Flag] = (),
        first: Sequence[str] = (),
        more_help: Callable[[], str] = str,
    ):
        self.function, self.name, self.first, self.more_help = function, name, first, more_help
        self.kinds: dict[str, Any] = {}
        self.models: dict[str, type[BaseModel]] = {}
        self.words: list[str] = []
        self.flags: dict[str, Flag] = {}
        self.takes_more_words = False
        hints, meanings = typing.get_type_hints(function, include_extras=True), described_parameters(function)
        for name, parameter in inspect.signature(function).parameters.items():
            kind = hints.get(name, str)
            if parameter.kind is parameter.VAR_KEYWORD:
                self.flags |= {flag.name: flag for flag in keys if flag.name not in self.flags}
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                self.models[name] = kind
                self.flags |= {flag.name: flag for flag in flags_of(kind)}
            elif parameter.kind is parameter.VAR_POSITIONAL:
                self.takes_more_words = True
                self.words.append(name)
            else:
                self.kinds[name] = kind
                default = ... if parameter.default is parameter.empty else parameter.default
                flag = Flag.of_field(name, FieldInfo.from_annotated_attribute(kind, default))
                self.flags[name] = flag._replace(meaning=meanings.get(name) or flag.meaning)
                if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                    self.words.append(name)
        self.flags["trust"] = Flag("trust", "bool", "false", _TRUST)

    @property
    def usage(self) -> str:
        """The line that shows how the command is written."""
        words = []
        for name in self.words:
            flag, word = self.flags.get(name), name.upper()
            optional = flag is not None and flag.default != "required"
            words.append(f"{word}..." if flag is None else f"[{word}]" if optional else word)
        needed = [
            f"{flag.typed_as} {flag.name.upper()}"
            for flag in self.flags.values()
            if flag.default == "required" and flag.name not in self.words
        ]
        return " ".join([self.name, *words, *needed, "[--flag value ...]"])

    def read(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Return the words beyond the named ones, and the text of every flag; allow the code they name."""
        texts: dict[str, str] = {}
        bare: list[str] = []
        position = 0
        while position < len(words):
            word, position = words[position], position + 1
            if not _is_flag(word):
                bare.append(word)
                continue
            name, equals, text = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            kind = self._kind(name)
            following = words[position] if position < len(words) else None
            if not equals and kind == "bool" and (following or "").lower() not in ("true", "false"):
                text = "true"
            elif not equals:
                if following is None or _is_flag(following):
                    raise UserError(f"{word} needs a value: {word} VALUE, or {word}=VALUE")
                text, position = following, position + 1
            several = name in texts and self.kinds.get(name) == Names
            texts[name] = f"{texts[name]},{text}" if several else text
        allow(words, everything=texts.pop("trust", "").lower() == "true")
        return self._place(bare, texts), texts

    def _place(self, bare: list[str], texts: dict[str, str]) -> list[str]:
        """Give bare words the names of their parameters; return those that are left for `*`."""
        named = [name for name in self.words if name in self.flags]
        for name, word in zip(named, bare):
            if name in texts:
                raise UserError(f"{name.upper()} is given twice: {texts[name]!r} and {word!r}")
            texts[name] = word
        left = bare[len(named) :]
        if left and (not self.takes_more_words or "-" in left):  # fire would end the call at a dash
            word = left[0]
            key = "config" if word.endswith((".yaml", ".yml")) else "data" if os.path.isdir(word) else ""
            meant = key in self.flags and key not in texts
            hint = f"; did you mean --{key} {word}?" if meant else "; flags are --name value."
            raise UserError(f"unexpected word {word!r}{hint} {self._how}")
        if self.takes_more_words and not left:
            raise UserError(f"{self.words[-1].upper()} is missing; write {self.usage}")
        for flag in self.flags.values():
            if flag.default == "required" and flag.name not in texts:
                what = flag.name.upper() if flag.name in self.words else flag.typed_as
                raise UserError(f"{what} is missing; write {self.usage}")
        return left

    @property
    def sections(self) -> list[str]:
        """The sections of the flags that are keys, as --SECTION.KEY: each has a page of its own."""
        return list(dict.fromkeys(name.partition(".")[0] for name in self.flags if "." in name))

    @property
    def _how(self) -> str:
        return f"{self.name} --help lists the flags"

    def _kind(self, name: str) -> str:
        """Return the type of a flag, in words; raises UserError if there is no such flag."""
        if name in self.flags:
            return self.flags[name].kind
        for known, flag in self.flags.items():  # a key of a mapping; a section, as YAML
            if known.startswith(f"{name}.") or (flag.kind == "dict" and name.startswith(f"{known}.")):
                return "dict"
        hint = re.sub(r"--\S+", lambda flag: flag[0].replace("_", "-"), nearest(name, self.flags, "--"))
        end = "" if hint.endswith("?") else "."
        raise UserError(f"unknown flag --{name.replace('_', '-')}{hint}{end} {self._how}")

    def __call__(self, *words: str, **texts: str) -> Any:
        """Read every flag by its type and call the function."""
        if "out" in texts:  # a shell leaves --out=~/PLACE as it is
            texts["out"] = os.path.expanduser(texts["out"])
        of_file = OutFile in (kind := self.kinds.get("out"), *typing.get_args(kind))
        (require_writable_file if of_file else require_writable)(texts.get("out", ""))
        wrong: list[str] = []
        values: dict[str, Any] = {}
        for name, kind in self.kinds.items():
            if name in texts:
                try:
                    values[name] = TypeAdapter(kind).validate_python(self._typed(name, texts.pop(name), kind))
                except ValidationError as error:
                    wrong.append(_value_faults(error, name))
        for name, model in self.models.items():
            given = {
                key: self._typed(key, texts.pop(key), field.annotation)
                for key, field in model.model_fields.items()
                if key in texts
            }
            try:
                values[name] = model(**given)
            except ValidationError as error:
                wrong.append(_value_faults(error))
        if wrong:
            raise UserError("; ".join(wrong) + f". {self._how}")
        positional = [values.pop(name) for name in self.words if name in values] if words else []
        return self.function(*positional, *words, **values, **texts)

    def _typed(self, name: str, text: str, kind: Any) -> Any:
        value = parse_value(text, kind, f"--{name}")
        return tuple(filter(None, value)) if kind == Names else value

    def short_help(self) -> str:
        """Return the usage line, what the command does, and the flags that matter first, a line each."""
        words = [self.flags[name] for name in self.words if name in self.flags]
        flags = [flag for flag in self.flags.values() if flag not in words]
        first = [self.flags[name] for name in self.first if name in self.flags] or flags[:SHOWN]
        lines = [(flag.name.upper(), flag.meaning) for flag in words]
        lines += [(flag.typed_as, flag.meaning) for flag in first]
        column = max((len(name) for name, _ in lines), default=0) + 4
        listed = [f"  {name:{column - 2}s}{shorten(meaning, WIDTH - column)}" for name, meaning in lines]
        left = len(flags) - len(first)
        more = f"{left} more flags: --help all" if left else "--help all describes each in full"
        if self.sections:
            more = textwrap.fill(f"{more}, or by section: --help {'|'.join(self.sections)}", WIDTH)
        about = textwrap.fill(summary(self.function), WIDTH)
        return "\n".join([usage_line(self.usage), "", about, "", *listed, "", more])

    def full_help(self, section: str = "") -> str:
        """Return the module's text, and every flag (or a section's) with its type, default and meaning."""
        about = inspect.getdoc(inspect.getmodule(self.function)) or ""
        doc = inspect.cleandoc(self.function.__doc__ or "").split("Args:")[0].rstrip()
        listed = key_table(
            flag._replace(name=flag.name.upper() if flag.name in self.words else flag.typed_as)
            for flag in self.flags.values()
            if flag.name.startswith(f"{section}." if section else "")
        )
        if section:
            return listed
        return "\n\n".join(filter(None, (usage_line(self.usage), doc, about, listed, self.more_help())))


def run(
    function: Callable | None = None,
    /,
    *,
    keys: Callable[[], Iterable[Flag]] = tuple,
    first: Sequence[str] = (),
    more_help: Callable[[], str] = str,
    outlives_readers: bool = False,
    **commands: Callable,
) -> None:
    """Run a command with the words of the command line and exit with the status that it returns.

    function: what runs if the first word is not one of `commands`; without it, that word must be one.
    A UserError prints its message alone and exits with its status, mostly 2. `keys`, `first`, `more_help`:
    see Command. outlives_readers: it goes on when nobody reads what it prints any more.
    """
    error_output.print_whoever_reads(outlives_readers)
    # the deepspeed launcher adds it
    words = [word for word in sys.argv[1:] if not word.startswith("--local_rank")]
    if os.environ.get("RANK", "0") == "0" and not LARGE_LIBRARIES & sys.modules.keys():
        sys.meta_path.insert(0, SayWhatLoads())
    code: Any = 0
    try:
        for before, word in zip(["", *words], words):
            if not re.search(r"\s", word):  # a text that is searched or augmented may have any URL
                flag = next(filter(_is_flag, (word, before)), "the command")
                require_no_credentials(word, flag.partition("=")[0])
        typed_as = program()
        others = commands
        if words and words[0] in commands:
            function, typed_as, words, others = commands[words[0]], f"{typed_as} {words[0]}", words[1:], {}
        command = None if function is None else Command(function, typed_as, keys(), first, more_help)
        if any(word in ("-h", "help") or word.partition("=")[0] == "--help" for word in words):
            print(_help(command, typed_as, others, words))
        elif command is None:
            unknown = f"unknown command {words[0]!r}{nearest(words[0], commands)}" if words else "no command"
            raise UserError(f"{unknown}; write {typed_as} {'|'.join(commands)} ...")
        else:
            code = _call(command, words, commands)
        if not code:
            error_output.require_printed()
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        code = 141
    except (UserError, AugmentationError) as error:
        error_output.print_at_end(error)
        code = error.exit_status if isinstance(error, UserError) else 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        exec("")  # after one in a text that is executed, as of data classes, `python -m` ends by SIGINT
        code = 130
    except Exception as error:
        code = 1
        if message := error_output.lost_rank_message(error):
            error_output.print_error(UserError(message))
        elif not error_output.is_printed(error) and is_of_disk(error):
            kept = "what was finished before is kept: give the same command again once the disk takes files"
            error_output.print_error(UserError(f"{error.filename}: {error.strerror}; {kept}"))
            code = 2
        elif not error_output.is_printed(error):
            raise
    finally:
        error_output.print_whoever_reads()  # what is left to print ends nothing
    error_output.exit_process(code if isinstance(code, int) else 0)


def _call(command: Command, words: Sequence[str], commands: Iterable[str]) -> Any:
    """Check the words, and have fire call the command with them."""
    bare = list(itertools.takewhile(lambda word: not _is_flag(word), words))
    too_many = len(bare) > len(command.words) and not command.takes_more_words and "/" not in bare[0]
    if too_many and (hint := nearest(bare[0], commands)):  # as `plna FILE`
        raise UserError(f"unknown command {bare[0]!r}{hint} {program()} --help lists the commands")
    left, texts = command.read(words)
    arguments = [*left, *(f"--{name}={text}" for name, text in texts.items())]

    def call(*words: str, **texts: str) -> Any:  # fire needs a function of its own
        return command(*words, **texts)

    return fire.Fire(SetParseFn(str)(call), command=arguments, name=command.name, serialize=lambda _: None)


def _help(command: Command | None, typed_as: str, commands: dict[str, Callable], words: Sequence[str]) -> str:
    topics = {word.removeprefix("--help=") for word in words if word.startswith("--help=")}
    help_place = next(
        (place for place, word in enumerate(words) if word in ("--help", "-h", "help")), len(words)
    )
    topics |= {*itertools.takewhile(lambda word: not _is_flag(word), words[help_place + 1 :])}
    pages = []
    if command is not None:
        sections = [command.full_help(section) for section in command.sections if section in topics]
        pages += sections or [command.full_help() if "all" in topics else command.short_help()]
    if commands:
        width = max(map(len, commands)) + 2
        about = {name: shorten(summary(one), WIDTH - width - 2) for name, one in commands.items()}
        listed = [f"  {name:{width}s}{line}" for name, line in about.items()]
        pages.append("\n".join([f"{typed_as} COMMAND ..., each with its own --help:", *listed]))
    return "\n\n".join(pages)


def _is_flag(word: str) -> bool:
    """A number below zero and a bare dash are values."""
    return word.startswith("-") and len(word) > 1 and not re.match(r"-\.?\d", word)


def _value_faults(error: ValidationError, name: str = "") -> str:
    """Return what is wrong with the value of the flag `name`, or with those of a model's fields."""
    return "; ".join(
        f"--{(name or str(fault['loc'][0])).replace('_', '-')}: "
        f"{fault['msg'].removeprefix('Value error, ')} (got {excerpt(fault['input'])})"
        for fault in error.errors()
    )


# -- the text of help pages -----------------------------------------------------


def key_table(flags: Iterable[Flag]) -> str:
    """Return flags as text: name, type and default on one line, the meaning below."""
    lines = []
    for flag in flags:
        default = "required" if flag.default == "required" else f"default {flag.default}"
        lines.append(f"  {flag.name} {flag.kind}" + (f" ({default})" if flag.default else ""))
        lines += textwrap.wrap(flag.meaning, WIDTH - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def usage_line(usage: str) -> str:
    """Return "usage: " and how a command is written, on as many lines as it takes."""
    text = f"usage: {usage}".replace("[--flag value ...]", "[--flag\xa0value\xa0...]")
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\xa0", " ")


def summary(function: Callable) -> str:
    """Return the first paragraph of a function's docstring, as one line."""
    return " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split())


def shorten(meaning: str, width: int) -> str:
    """Return a text that fits on a line: whole, or its first clause, or as many words as fit.

    >>> shorten("test (10 folds; as printed), or dev. The default is test.", 40)
    'test (10 folds; as printed), or dev'
    """
    ends = [match.start() for match in re.finditer(r"[;.] ", meaning)]
    clauses = [meaning[:end] for end in ends if meaning.count("(", 0, end) == meaning.count(")", 0, end)]
    for text in (meaning.rstrip("."), *clauses[:1]):
        if len(text) <= width:
            return text
    return textwrap.shorten(meaning, width, placeholder=" ...", break_on_hyphens=False)


def described_parameters(function: Callable) -> dict[str, str]:
    """Return what a docstring says of each parameter, under "Args:"; one entry may name several."""
    section = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].split("\n\n")[0]
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        entry = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            meanings |= dict.fromkeys(names, entry[2])
        elif line.startswith(" " * 8):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
        else:
            names = []
    return meanings
