"""The report's page: one HTML file without any request to anywhere, and the same as Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

from finetune.report.tables import Cell, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1d2328; --paper: #ffffff; --faint: #5c6670; --line: #d5dade; --ours: #eef4fb;
  --reference: #f6f6f4; --accent: #1f5f99; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --paper: #15181b; --faint: #9aa4ad; --line: #343a40;
  --ours: #1b2733; --reference: #1c1e20; --accent: #7db4e6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.2rem; margin: 2.75rem 0 .25rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .25rem; }
p, ul { margin: .25rem 0 .75rem; } .faint, figcaption, .notes { color: var(--faint); font-size: .875rem; }
a { color: var(--accent); } nav { margin: 1rem 0; display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .9rem; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; max-width: max-content; }
.scroll:focus-visible { outline: 2px solid var(--accent); }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem .3rem .55rem; text-align: right; white-space: nowrap; }
thead th { border-bottom: 1px solid var(--line); font-weight: 600; vertical-align: bottom; white-space: normal;
  min-width: 4.2rem; }
tbody th, thead th:first-child { text-align: left; font-weight: 400; position: sticky; left: 0; background: var(--paper); }
tbody th { white-space: normal; min-width: 9rem; max-width: 20rem; overflow-wrap: anywhere; }
tbody.ours th, tbody.ours td { background: var(--ours); }
tbody.reference th, tbody.reference td { background: var(--reference); color: var(--faint); }
tbody th.heading { font-style: italic; font-size: .8rem; padding-top: .6rem; max-width: none; border-top: 1px solid var(--line); }
th.heading span { position: sticky; left: .65rem; display: inline-block; max-width: min(60rem, calc(100vw - 5rem)); }
td.text { white-space: normal; min-width: 6rem; overflow-wrap: anywhere; }
td { position: relative; } td sup { color: var(--accent); font-size: .65em; position: absolute; }
.std { font-size: .85em; opacity: .8; } .notes { padding-left: 1.4rem; } .notes li { overflow-wrap: anywhere; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem; margin: .75rem 0; }
figure { margin: 0; border: 1px solid var(--line); border-radius: 6px; padding: .5rem; }
figure svg { display: block; width: 100%; height: auto; max-height: 26rem; }
details { margin: 1.5rem 0; } summary { cursor: pointer; color: var(--accent); }
@media (max-width: 30rem) { main { padding: 1rem .75rem 3rem; } th, td { padding: .3rem .75rem .3rem .35rem; }
  tbody th { min-width: 7.5rem; max-width: 8.5rem; } }
"""


def page(
    title: str,
    introduction: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    empty: Sequence[Table],
    figures: Mapping[str, Mapping[str, str]],
) -> str:
    """The HTML document.

    Args:
        introduction: paragraphs, plain text.
        tables: section title -> tables; sections without tables and figures are left out.
        empty: papers' tables for which there is no figure of ours, folded at the end.
        figures: section title -> figure's name -> svg element.
    """
    sections = [name for name in dict.fromkeys([*tables, *figures]) if tables.get(name) or figures.get(name)]
    body = [f"<h1>{html.escape(title)}</h1>"]
    body += [f'<p class="faint">{html.escape(text)}</p>' for text in introduction]
    links = [f'<a href="#{_anchor(name)}">{html.escape(name)}</a>' for name in sections]
    body.append(f"<nav>{''.join(links)}</nav>")
    for name in sections:
        body.append(f'<h2 id="{_anchor(name)}">{html.escape(name)}</h2>')
        body += [_table(table) for table in tables.get(name, ())]
        if figures.get(name):
            body.append('<div class="figures">')
            for key, svg in figures[name].items():
                body.append(f'<figure role="img" aria-label="{html.escape(key)}">{svg}</figure>')
            body.append("</div>")
    if empty:
        names = ", ".join(table.title for table in empty)
        body.append(
            f"<details><summary>Papers' tables without a figure of ours: {html.escape(names)}</summary>"
        )
        body += [_table(table) for table in empty]
        body.append("</details>")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in table.columns)
    parts = [
        f'<h3 id="table-{table.key}">{html.escape(table.title)}</h3>',
        f'<p class="faint">{html.escape(table.caption)}</p>',
    ]
    parts.append(f'<div class="scroll" tabindex="0"><table><thead><tr><th></th>{head}</tr></thead>')
    for block in table.blocks:
        parts.append(
            f'<tbody class="{"reference" if block.reference else "ours" if block.heading else "plain"}">'
        )
        if block.reference:
            span = len(table.columns) + 1
            parts.append(
                '<tr><th class="heading" '
                f'colspan="{span}"><span>{html.escape(block.heading)}</span></th></tr>'
            )
        for row in block.rows:
            cells = "".join(_cell(cell) for cell in row.cells)
            parts.append(f'<tr><th scope="row">{html.escape(row.label)}</th>{cells}</tr>')
        parts.append("</tbody>")
    parts.append("</table></div>")
    if table.notes:
        parts.append(
            '<ol class="notes">' + "".join(f"<li>{html.escape(note)}</li>" for note in table.notes) + "</ol>"
        )
    return "\n".join(parts)


def _cell(cell: Cell) -> str:
    figure, plus_minus, spread = str(cell).partition(" ± ")
    text = html.escape(figure)
    if cell.best:
        text = f"<strong>{text}</strong>"
    if plus_minus:
        text += f'<span class="std"> ± {spread}</span>'
    marks = ("†" if cell.incomplete else "") + ",".join(map(str, cell.notes))
    sup = f"<sup>{marks}</sup>" if marks and text else ""
    title = f' title="mean and standard deviation over {cell.seeds} seeds"' if cell.seeds > 1 else ""
    kind = (
        ' class="text"'
        if cell.value is None and cell.text and not re.fullmatch(r"[\d.,:]+[a-zA-Z]?", cell.text)
        else ""
    )
    return f"<td{kind}{title}>{text}{sup}</td>"


def markdown(
    title: str,
    introduction: Sequence[str],
    tables: Mapping[str, Sequence[Table]],
    empty: Sequence[Table],
    figures: Mapping[str, Mapping[str, str]],
) -> str:
    """The same as Markdown; figures: section title -> name -> path of a PNG, relative to the file."""
    lines = [f"# {title}", "", *introduction]
    for name in dict.fromkeys([*tables, *figures]):
        if not tables.get(name) and not figures.get(name):
            continue
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
                marks = ("†" if cell.incomplete else "") + ",".join(map(str, cell.notes))
                text = f"**{cell}**" if cell.best else str(cell)
                cells.append(f"{text} <sup>{marks}</sup>" if marks and text else text)
            lines.append(_line([row.label if not block.reference else f"*{row.label}*", *cells]))
    if table.notes:
        lines += ["", *(f"{number}. {note}" for number, note in enumerate(table.notes, start=1))]
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower()).strip("-")
