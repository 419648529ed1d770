"""The report's page: one HTML file without any request to anywhere, and the same as Markdown."""

import re
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader

from finetune.report.cells import Cell, Table


def page(
    title: str,
    introduction: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    empty: Sequence[Table],
    figures: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the HTML document, made from page.html.jinja and page.css.

    Args:
        introduction: paragraphs, plain text.
        tables: section title -> tables; sections without tables and figures are left out.
        empty: papers' tables for which there is no figure of ours, folded at the end.
        figures: section title -> figure's name -> svg element.
    """
    environment = Environment(loader=PackageLoader("finetune.report", ""), autoescape=True)
    environment.filters |= {"anchor": _anchor, "is_prose": _is_prose}
    return environment.get_template("page.html.jinja").render(
        title=title,
        introduction=introduction,
        sections=_sections(tables, figures),
        tables=tables,
        empty=empty,
        figures=figures,
    )


def _sections(tables: Mapping[str, Sequence[Table]], figures: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the titles of the sections that have tables or figures."""
    return [name for name in dict.fromkeys([*tables, *figures]) if tables.get(name) or figures.get(name)]


def _is_prose(cell: Cell) -> bool:
    """Return whether a cell holds words, which may wrap, rather than a figure."""
    return cell.value is None and bool(cell.text) and not re.fullmatch(r"[\d.,:]+[a-zA-Z]?", cell.text)


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def markdown(
    title: str,
    introduction: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    empty: Sequence[Table],
    figures: Mapping[str, Mapping[str, str]],
) -> str:
    """Return the report as Markdown; figures: section -> name -> path of a PNG, relative to the file."""
    lines = [f"# {title}", "", *introduction]
    for name in _sections(tables, figures):
        lines += ["", f"## {name}"]
        for table in tables.get(name, ()):
            lines += _markdown_table(table)
        lines += [""] * bool(figures.get(name))
        lines += [f"![{key}]({path})" for key, path in figures.get(name, {}).items()]
    if empty:
        lines += ["", f"Without a figure of ours: {', '.join(table.title for table in empty)}."]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    lines = ["", f"### {table.title}", "", table.caption, ""]
    lines += [_line(["", *table.columns]), _line(["---"] * (len(table.columns) + 1))]
    for block in table.blocks:
        if block.reference:
            lines.append(_line([f"*{block.heading}*", *[""] * len(table.columns)]))
        for row in block.rows:
            cells = []
            for cell in row.cells:
                text = f"**{cell}**" if cell.best else str(cell)
                cells.append(f"{text} <sup>{cell.marks}</sup>" if cell.marks and text else text)
            lines.append(_line([row.label if not block.reference else f"*{row.label}*", *cells]))
    if table.notes:
        lines += ["", *(f"{number}. {note}" for number, note in enumerate(table.notes, start=1))]
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
