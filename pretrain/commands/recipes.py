"""List recipes as `--config` takes them, sweeps as `clearly sweep` does, with what their files say.

clearly recipes           all, a line each
clearly recipes simcse    those that speak of it, with all that they say
"""

import re
import textwrap

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import RECIPES


def recipes(word: str = "") -> None:
    """List the recipes of this project.

    Args:
        word: list only recipes whose name or text has it, with the whole text but commands.
    """
    lines = []
    for path in sorted(RECIPES.rglob("*.yaml"), key=lambda path: (path.parent != RECIPES, path)):
        name = path.relative_to(RECIPES).with_suffix("").as_posix()
        text = path.read_text("utf-8")
        titles = re.findall(r'^title: *"?([^"\n]*)', text, re.MULTILINE)  # a sweep has one
        comment = "".join(re.findall(r"\A(?:#.*\n)*", text))
        prose = re.findall(r"^# (\S.*)", comment, re.MULTILINE)  # beside its commands, which are indented
        about = re.sub(
            r":$", f" (configs/{name}.yaml)", " ".join([*(f"{title}." for title in titles), *prose])
        )
        if word.lower() in f"{name} {about}".lower():
            line = f"{name:28}{about if word else cli.shorten(about, cli.WIDTH - 28)}"
            lines += textwrap.wrap(line, cli.WIDTH, subsequent_indent=" " * 28, break_on_hyphens=False)
    if not lines:
        raise UserError(f"no recipe speaks of {word!r}; clearly recipes lists all")
    more = [] if word else ["", "clearly recipes WORD: the whole text of those that have the word"]
    print(*lines, *more, sep="\n")


if __name__ == "__main__":
    cli.run(recipes)
