"""Draw figures from the table of a sweep, the papers' among them: `clearly figures FOLDER`.

`clearly sweep` runs it for files that have `figures:`. Each goes to FOLDER/figures/NAME.png. A figure whose
rows have not been evaluated is not drawn.

    lines         a column by what a row is `at`, a line a system (VaSCL, figures 3 and 4; SDA, figure 5)
    differences   every row less the baseline, with its interval (AugCSE, figure 6)
"""

import json
from pathlib import Path
from typing import Any

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably


def draw(folder: Path) -> None:
    """Draw the figures of a sweep that has been tabulated.

    Args:
        folder: of the sweep's table: runs/sweeps/NAME.
    """
    from finetune.figures.drawing import to_png
    from finetune.figures.tables import DRAWERS, NotThere

    path = folder / "results.json"
    if not path.is_file():
        raise UserError(f"{path} is not there: it is the table of a sweep, made by `clearly sweep`")
    content = json.loads(path.read_text())
    figures: dict[str, Any] = content.get("figures", {})
    place = folder / "figures"
    make_folder(place)
    for name, figure in figures.items():
        if figure["kind"] not in DRAWERS:
            print(f"{name} is not drawn: there is no kind {figure['kind']!r} any more")
            continue
        try:
            picture = DRAWERS[figure["kind"]](content, figure)
        except NotThere as reason:
            print(f"{name} is not drawn: {reason}")
            continue
        if figure["title"]:
            picture.suptitle(figure["title"])
        replace_durably(place / f"{name}.png", to_png(picture))
        print(f"drawn: {place / name}.png")


if __name__ == "__main__":
    cli.run(draw)
