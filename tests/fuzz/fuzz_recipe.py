"""Fuzz target: recipes in YAML, with flags over them, `pretrain.config.recipe`."""

import json
import random
from typing import Any

import yaml
from fuzz_target import Target, refused, to_json
from mutations import mutated_bytes, mutated_text, mutated_tree, odd_text

from pretrain.common.errors import UserError
from pretrain.common.typed_values import parse_yaml
from pretrain.config import recipe

_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FLAGS = b"\n# flags\n"  # in a case: the recipe, then a line `KEY VALUE` for each flag
_BOMB = (
    "a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
    "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
    "e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\n"
    "train: {steps: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]}\n"
    "model: {layers: [*f, *f, *f, *f, *f, *f, *f, *f]}\n"
)
_ODD = (
    _BOMB, "train: &t\n  <<: *t\n  steps: 3\n", "data: &a [*a]\n", "train: &t {steps: *t}\n",
    "? [a, b]\n: c\n", "? {a: b}\n: c\n", "1: 2\nnull: 3\n2026-01-02: 4\n",
    "train: {1: 2, true: 3, .nan: 4}\n", "!!set {a, b}\n", "!!python/object:os.system x\n",
    "a: !!binary aGVsbG8=\n", "a: !!binary é\n", "--- a: b\n--- c: d\n", "a: b\n---\nc: d\n",
    "%YAML 9.9\n---\na: b\n", "[" * 3000, "{a: " * 3000, "- " * 3000, "? " * 800, "a: 2026-13-45\n",
    "a: !!int x\n", "a: !!float [1]\n", "a: !!timestamp 1\n", "=: 1\n", "a: =\n", "train: {lr: 1e9999}\n",
    "train: {steps: 0o17777777777777777777777777, lr: 190:20:30}\n", "train: {steps: 0b_}\n",
    "train: {steps: 0x_}\n", "train: {steps: 1__0}\n", "train: {steps: +_}\n", "train: {lr: ._}\n",
    "train: {lr: 1:60.5}\n", "a: !!bool maybe\n", "a: 9999-12-31 23:59:59.9 -23:59\n",
    "a: 0001-01-01 00:00:00 +23:59\n", "a: !!omap [1]\n", "a: !!pairs {a: b}\n", "<<: 1\n", "<<: [1]\n",
    "train: {<<: [{steps: 1}, {lr: 2}]}\n", "a: !!timestamp 2001-01-01 00:00:00 +99:99\n",
)  # fmt: skip


class Recipes(Target):
    name = "recipe"
    about = "recipes with flags; what is accepted is written as YAML and read again as the same"

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self._sections = [
            (section, values)
            for path in sorted(recipe.RECIPES.glob("*.yaml"))
            for section, values in yaml.load(path.read_bytes(), _LOADER).items()
        ]
        self._keys = [name for name, *_ in recipe.flags()]
        self._file = folder / "recipe.yaml"

    def generate(self, chance: random.Random) -> bytes:
        draw = chance.random()
        if draw < 0.06:
            text = chance.choice(_ODD).encode()
        else:
            tree = dict(chance.sample(self._sections, chance.choice((0, 1, 1, 2, 3))))
            if draw < 0.8:
                tree = mutated_tree(chance, tree)
            text = _written(tree, chance.random() < 0.1)
        if draw > 0.9 or draw < 0.04:
            text = mutated_bytes(chance, text)
        flags = (f"{self._flag(chance)}\n" for _ in range(chance.choice((0, 0, 0, 1, 2))))
        return text + _FLAGS + "".join(flags).encode("utf-8", "surrogatepass")

    def _flag(self, chance: random.Random) -> str:
        key = chance.choice(self._keys)
        _, values = chance.choice(self._sections)
        value = chance.choice(list(values.values())) if isinstance(values, dict) and values else values
        text = json.dumps(value) if isinstance(value, dict | list) else str(value)
        if chance.random() < 0.3:
            text = odd_text(chance)
        if chance.random() < 0.1:
            key = mutated_text(chance, key, 1)
        return f"{key} {text}"

    def check(self, case: bytes) -> str:
        text, _, lines = case.partition(_FLAGS)
        self._file.write_bytes(text)
        pairs = (line.partition(" ")[::2] for line in lines.decode("utf-8", "surrogateescape").splitlines())
        flags = {key: value for key, value in pairs if key}
        try:
            config = recipe.load_config(self._file, flags)
        except UserError as error:
            # a flag's fault names the flag, not the file
            return refused(error, *([] if flags else [str(self._file)]))
        if len(case) % 8:  # writing YAML takes longer than all else
            written = config.model_dump(mode="json")
        else:
            written = parse_yaml(recipe.to_yaml(config), "written")
        again = recipe.validate_config(written, "written")
        assert again == config, "the recipe is another once it is written and read"
        return "accepted"


def _written(tree: Any, as_json: bool) -> bytes:
    """Return a tree as YAML; as JSON, which is YAML too, where half of a surrogate pair forbids that."""
    try:
        if not as_json:
            return yaml.dump(tree, Dumper=_DUMPER).encode()
    except UnicodeEncodeError:
        pass
    return to_json(tree)
