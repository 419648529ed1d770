"""List the recipes that `--config` and `clearly sweep` take, each with what its file says of itself.

    clearly recipes           all
    clearly recipes simcse    those that speak of it

Names are as `--config NAME` takes them.
"""

import re

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.config.recipe import RECIPES


def recipes(word: str = "") -> None:
    """List the recipes of this project, a line each.

    Args:
        word: list only recipes whose line has it.
    """
    lines = []
    for path in sorted(RECIPES.rglob("*.yaml"), key=lambda path: (path.parent != RECIPES, path)):
        name = path.relative_to(RECIPES).with_suffix("").as_posix()
        text = path.read_text("utf-8")
        title = re.search(r'^title: *"?([^"\n]*)', text, re.MULTILINE)  # a sweep has one
        about = title[1] if title else text.partition("\n")[0].lstrip("# ")
        if word.lower() in f"{name} {about}".lower():
            lines.append(f"{name:28}{cli.shorten(about, cli.WIDTH - 28)}")
    if not lines:
        raise UserError(f"no recipe speaks of {word!r}; clearly recipes lists all")
    print(*lines, sep="\n")


if __name__ == "__main__":
    cli.run(recipes)
