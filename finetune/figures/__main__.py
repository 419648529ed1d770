"""Draw figures from the table of a sweep, the papers' among them: `python -m finetune.figures FOLDER`.

`pretrain.sweep` runs it for files that have `figures:`. Each goes to FOLDER/figures/NAME.png, those with
numbers of their own to NAME.md beside it. A figure whose rows have not been evaluated is not drawn.

    lines         a column by what a row is `at`, a line a system (VaSCL, figures 3 and 4; SDA, figure 5)
    dots          a column by row, two kinds of rows in two colours (AugCSE, figure 6)
    correlations  Pearson's, between columns, over rows (AugCSE, figure 7)
    nli           distances of premises to entailed and contradicting hypotheses (VaSCL, figure 2b)
    cases         pairs with a negation: their ranks, and the weight of every word (SDA, figure 4)
    differences   every row less the baseline, with its interval
"""

import json
from pathlib import Path
from typing import Any

from finetune.flags import EvalData
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably


def draw(folder: Path, *, only: cli.Names = (), eval_data: EvalData = "") -> None:
    """Draw the figures of a sweep that has been tabulated.

    Args:
        folder: of the sweep's table: runs/sweeps/NAME.
        only: names of figures, by commas; default: all of the file.
    """
    from finetune.figures.drawing import NotThere

    path = folder / "results.json"
    if not path.is_file():
        raise UserError(f"{path} is not there: it is the table of a sweep, made by `clearly sweep`")
    content = json.loads(path.read_text())
    figures: dict[str, Any] = content.get("figures", {})
    if unknown := [name for name in only if name not in figures]:
        raise UserError(f"--only {unknown[0]!r}: this sweep has {', '.join(figures) or 'no figures'}")
    place = folder / "figures"
    make_folder(place)
    for name in only or figures:
        try:
            picture, text = _render(content, figures[name], eval_data)
        except NotThere as reason:
            print(f"{name} is not drawn: {reason}")
            continue
        for file, data in ((f"{name}.png", picture), (f"{name}.md", text.encode())):
            if data:
                replace_durably(place / file, data)
                print(f"drawn: {place / file}")


def _render(content: dict[str, Any], figure: dict[str, Any], data: str) -> tuple[bytes, str]:
    """Return the picture as PNG, and the text in Markdown of a figure that has numbers of its own."""
    from finetune.figures import cases, tables
    from finetune.figures.drawing import to_png

    kind, text = figure["kind"], ""
    if kind == "cases":
        picture, text = cases.cases(content, figure, data)
    elif kind == "correlations":
        picture, text = tables.correlations(content, figure)
    else:
        picture = tables.DRAWERS[kind](content, figure)
    if figure["title"]:
        picture.suptitle(figure["title"])
    return to_png(picture), text


if __name__ == "__main__":
    cli.run(draw)
