"""Draw figures from the table of a sweep, the papers' among them: `python -m finetune.figures FOLDER`.

`clearly sweep` runs it for files that have `figures:`. Each goes to FOLDER/figures/NAME.png, those with
numbers of their own to NAME.md beside it. A figure whose rows have not been evaluated is not drawn.

    lines         a column by what a row is `at`, a line a system (VaSCL, figures 3 and 4; SDA, figure 5)
    dots          a column by row, two kinds of rows in two colours (AugCSE, figure 6)
    correlations  Pearson's, between columns, over rows (AugCSE, figure 7)
    nli           distances of premises to entailed and contradicting hypotheses (VaSCL, figure 2b)
    cases         pairs with a negation: their ranks, and the weight of every word (SDA, figure 4)
    overlap       how many words the two sentences of a pair share (SDA, section 6.3)
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
        raise UserError(f"{path} is not there: it is the table of a sweep, which `clearly sweep` makes")
    content = json.loads(path.read_text())
    figures: dict[str, Any] = content.get("figures", {})
    if unknown := [name for name in only if name not in figures]:
        raise UserError(f"--only {unknown[0]!r}: this sweep has {', '.join(figures) or 'no figures'}")
    place = folder / "figures"
    make_folder(place)
    for name, figure in figures.items():
        if only and name not in only:
            continue
        try:
            drawn, text = _drawn(content, figure, eval_data)
        except NotThere as reason:
            print(f"{name} is not drawn: {reason}")
            continue
        for suffix, data in ((".png", drawn), (".md", text)):
            if data is not None:
                replace_durably(place / f"{name}{suffix}", data)
                print(f"drawn: {place / name}{suffix}")


def _drawn(content: dict[str, Any], figure: dict[str, Any], data: str) -> tuple[bytes | None, bytes | None]:
    """Return the picture as PNG and the text in Markdown, where the figure has them.

    Raises:
        NotThere: what it shows has not been evaluated.
    """
    from finetune.figures import tables
    from finetune.figures.drawing import to_png

    kind = figure["kind"]
    text = None
    if kind == "overlap":
        from finetune.figures.cases import overlap_table

        return None, overlap_table(data).encode()
    if kind == "cases":
        from finetune.figures.cases import cases

        picture, text = cases(content, figure, data)
    elif kind == "correlations":
        picture, text = tables.correlations(content, figure)
    else:
        picture = tables.DRAWERS[kind](content, figure)
    if figure["title"]:
        picture.suptitle(figure["title"])
    return to_png(picture), None if text is None else text.encode()


if __name__ == "__main__":
    cli.run(draw)
