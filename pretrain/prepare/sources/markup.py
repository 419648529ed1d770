"""Find the sections of a document in Markdown, reStructuredText, HTML or wikitext, without its marks."""

import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser

from augment.text.cleaning import clean

MARKDOWN, RESTRUCTURED, HTML, WIKITEXT = "markdown", "reStructuredText", "html", "wikitext"
MARKUP = {
    **dict.fromkeys((".md", ".markdown"), MARKDOWN),
    ".rst": RESTRUCTURED,
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTML),
    **dict.fromkeys((".wiki", ".wikitext", ".mediawiki"), WIKITEXT),
}
"""How a file's name ends -> the markup of its headings."""

Line = tuple[int, str]
"""The level of a heading from 1 on, or 0 of other text, and the line."""
Pair = tuple[str, str]
Marks = Iterable[tuple[re.Pattern[str], str]]


def sections(text: str, markup: str) -> list[Pair]:
    """Return (heading, section) of a document, in order, without marks; lines of a paragraph are joined.

    A heading has those above it before it, the document's first: `tar: Options`. A section ends where the
    next heading begins, of whatever level.
    """
    lines, marks = _READERS[markup]
    path: list[str] = []
    found: list[tuple[str, list[str]]] = [("", [])]
    for level, line in lines(text):
        if level:
            above = [*path, *[""] * level][: level - 1]  # of a document that begins with one of level 2
            path = [*above, _plain(line, marks)]
            found.append((": ".join(dict.fromkeys(filter(None, path))), []))
        else:
            found[-1][1].append(line)
    bodies = ((heading, _plain("\n".join(body), marks)) for heading, body in found)
    return [(heading, body) for heading, body in bodies if heading or body]


def _plain(text: str, marks: Marks) -> str:
    """Return a text without marks, a paragraph a line."""
    for pattern, instead in marks:
        text = pattern.sub(instead, text)
    paragraphs = (clean(part.replace("\n", " ")) for part in re.split(r"\n\s*\n", text))
    return "\n".join(filter(None, paragraphs))


# -- Markdown and reStructuredText

_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # what site generators read
_FENCE = re.compile(r"^[ \t]*(```+|~~~+).*?^[ \t]*\1[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_ATX = re.compile(r" {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
_UNDERLINE = re.compile(r"([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
_NOTE = re.compile(  # its first line is text, too
    r"\s*\.\. (?:attention|caution|danger|error|hint|important|note|seealso|tip|warning)::\s+(?=\S)"
)
_DIRECTIVE = re.compile(r"^\s*(\.\. .*|:[\w -]+:(?!`).*|\|?[-=+| ]{4,}|\|.*\|)$")  # or of a table
_LITERAL = re.compile(  # of reStructuredText: what is indented below it is no text
    r"\s*\.\. (?:(?:code|code-block|sourcecode|parsed-literal|math|figure|toctree|contents|raw|productionlist"
    r"|csv-table|list-table|index)::|(?!.*::))|\s*>>> |(?!\s*\.\. ).*::\s*$"
)
_EMPHASIS = (
    (re.compile(r"`+([^`]*)`+_{0,2}|\*\*([^*]+)\*\*|(?<!\w)\*([^*\s][^*]*)\*(?!\w)"), r"\1\2\3"),
    (re.compile(r"^[ \t]*>(?:[ \t]|$)", re.MULTILINE), ""),
    (re.compile(r"^\s*(?:[-*+]|\d+\.)\s+", re.MULTILINE), "\n\n"),  # an item is a paragraph
)
_MARKDOWN_MARKS = (
    (re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),  # [text](address)
    (re.compile(r"</?\w[^>]*>"), " "),
    *_EMPHASIS,
)
_RESTRUCTURED_MARKS = (
    (re.compile(r"(?::[\w:+.-]+:)?`~?([^`]+?)\s+<[^>`]*>`_{0,2}"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+.-]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"(?:^|(?<=\s))::[ \t]*$", re.MULTILINE), ""),  # before code
    (re.compile(r"::[ \t]*$", re.MULTILINE), ":"),
    *_EMPHASIS,
)


def _underlined_lines(text: str, markup: str, levels: list[str]) -> Iterator[Line]:
    """Yield lines; `levels`: marks under headings, of reStructuredText in the order of their first use."""
    lines = _FENCE.sub("", _FRONT.sub("", text)).expandtabs(4).splitlines()
    number, literal = 0, -1
    while number < len(lines):
        line, after = lines[number].rstrip(), lines[number + 1] if number + 1 < len(lines) else ""
        below = lines[number + 2] if number + 2 < len(lines) else ""
        number += 1
        if markup == RESTRUCTURED and line:
            depth = len(line) - len(line.lstrip())
            if 0 <= literal < depth:
                continue
            literal = depth if _LITERAL.match(line) else -1
            line = _NOTE.sub("", line, 1)
        if markup == RESTRUCTURED and _UNDERLINE.match(line) and after.strip() and below[:1] == line[:1]:
            continue  # a line over a heading, too
        if markup == MARKDOWN and (atx := _ATX.match(line)):
            yield len(atx[1]), atx[2]
        elif _is_underlined(line, after, markup):
            if (mark := after.strip()[0]) not in levels:
                levels.append(mark)
            yield levels.index(mark) + 1, line
            number += 1
        else:
            yield 0, "" if _DIRECTIVE.match(line) else line


def _is_underlined(line: str, after: str, markup: str) -> bool:
    """Return whether a line is a heading by the line under it."""
    match = _UNDERLINE.match(after)
    if match is None or not line.strip() or _UNDERLINE.match(line):
        return False
    if markup == MARKDOWN:
        return match[1] in "=-" and not line.startswith((" ", "|", "-", "#"))
    return not line.startswith(" ") and len(after.strip()) >= len(line.strip()) - 1


# -- HTML

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|center|dd|div|dl|dt|figcaption|figure|hr|li|main|ol|p"
    "|section|details|tr|ul|h[1-6]"
)
_NO_TEXT = re.compile(
    "button|footer|form|head|nav|noscript|pre|script|select|style|summary|svg|table|template|textarea"
)
_NO_TEXT_ROLES = frozenset(("navigation", "search", "banner", "contentinfo"))
_VOID = re.compile("area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr")  # have no end tag


class _Page(HTMLParser):
    """The lines of a page, a block a line; what is no text (code, tables, navigation) is left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[Line] = []
        self._words: list[str] = []
        self._skipped, self._depth = "", 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
        elif _NO_TEXT.fullmatch(tag) or (
            dict(attrs).get("role") in _NO_TEXT_ROLES and not _VOID.fullmatch(tag)
        ):
            self._skipped, self._depth = tag, 1
        elif _BLOCKS.fullmatch(tag):
            self.end_line()

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
        elif _BLOCKS.fullmatch(tag):
            self.end_line(_HEADINGS.get(tag, 0))

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._words.append(data)

    def end_line(self, level: int = 0) -> None:
        """End the line, a heading of this level if it is not 0."""
        line = clean("".join(self._words))
        if line := line.rstrip("¶§# ") if level else line:
            self.lines += [(level, line), (0, "")]
        self._words = []


def _html(text: str) -> Iterator[Line]:
    page = _Page()
    page.feed(text)
    page.close()
    page.end_line()
    return iter(page.lines)


# -- wikitext

_WIKI_LEFT_OUT = re.compile(
    r"<!--.*?-->|<ref[^>]*/>|<(ref|math|gallery|pre|code|syntaxhighlight|timeline|score)\b.*?</\1>"
    r"|^\{\|.*?^\|\}|__[A-Z]+__",
    re.DOTALL | re.MULTILINE,
)
_INNERMOST = re.compile(r"\{\{[^{}]*\}\}")  # a template, without those in it
_WIKI_HEADING = re.compile(r"\s*((?:= ?){1,6})([^=].*?)\s*((?:= ?){1,6})\s*$")  # WikiText writes `= = X = =`
_WIKI_MARKS = (
    (re.compile(r"\[\[\s*\w+:\S(?:[^\[\]]|\[\[[^\]]*\]\])*\]\]"), ""),  # files, categories, other languages
    (re.compile(r"\[\[(?:[^\]|]*\|)?([^\]]*)\]\]"), r"\1"),
    (re.compile(r"\[\w+://[^\s\]]*\s*([^\]]*)\]"), r"\1"),
    (re.compile(r"'{2,5}|</?(?:br|div|span|small|big|su[bp]|center|blockquote|nowiki|[bipsu])\b[^>]*>"), ""),
    (re.compile(r"^[ \t]*[*#:;]+[ \t]*", re.MULTILINE), ""),
)


def _wikitext(text: str) -> Iterator[Line]:
    text, count = _WIKI_LEFT_OUT.sub("", text), 1
    while count:
        text, count = _INNERMOST.subn("", text)
    for line in text.splitlines():
        heading = _WIKI_HEADING.match(line)
        if heading and heading[1].count("=") == heading[3].count("="):
            yield heading[1].count("="), heading[2]
        else:
            yield 0, line
        yield 0, ""


_READERS = {
    MARKDOWN: (lambda text: _underlined_lines(text, MARKDOWN, ["=", "-"]), _MARKDOWN_MARKS),
    RESTRUCTURED: (lambda text: _underlined_lines(text, RESTRUCTURED, []), _RESTRUCTURED_MARKS),
    HTML: (_html, ()),
    WIKITEXT: (_wikitext, _WIKI_MARKS),
}
