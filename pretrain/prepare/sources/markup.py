"""Find the sections of a document in Markdown, reStructuredText, HTML or wikitext, without its marks."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from html import escape, unescape
from html.parser import HTMLParser
from textwrap import dedent

from markdown_it import MarkdownIt

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


# -- Markdown

_RENDERER = MarkdownIt("commonmark", {"maxNesting": 100}).enable(["table", "strikethrough"])
_FRONT = re.compile(r"\A(---|\+\+\+)[ \t]*\n(.*?)^\1[ \t]*\n", re.DOTALL | re.MULTILINE)  # of site generators
_FRONT_TITLE = re.compile(r"""^title\s*[:=]\s*["']?(.*?)["']?[ \t]*$""", re.MULTILINE)
# mkdocs' notes and tabs
_INDENTED = re.compile(r"^(?:!!!|\?\?\?\+?|===\+?) .*\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
_FENCES = re.compile(r"^:::.*|(?<=\S)[ \t]*\{[#.][^}\n]*\}[ \t]*$", re.MULTILINE)  # of containers; an anchor
_SIGNS = re.compile(r"(<li>|<p>)(?:\[[ xX]\] |\[![A-Z]+\])|\[\^\d+\]:?")  # a box to tick, a note, a footnote


def _markdown(text: str) -> Iterator[Line]:
    """Yield the lines of a page as CommonMark renders it, its front matter's title if it has no other."""
    front = _FRONT.match(text)
    text = text[front.end() :] if front else text
    text = _FENCES.sub("", _INDENTED.sub(lambda note: dedent(note[1]), text))
    title = front and _FRONT_TITLE.search(front[2])
    head = f"<title>{escape(title[1])}</title>" if title else ""
    return _html(head + _SIGNS.sub(r"\1", _RENDERER.render(text)))


# -- reStructuredText

_UNDERLINE = re.compile(r"([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
_NOTE = re.compile(  # its first line is text, too
    r"\s*\.\. (?:attention|caution|danger|error|hint|important|note|seealso|tip|warning)::\s+(?=\S)"
)
_DIRECTIVE = re.compile(r"^\s*(\.\. .*|:[\w -]+:(?!`).*|\|?[-=+| ]{4,}|\|.*\|)$")  # or of a table
_LITERAL = re.compile(  # what is indented below it is no text
    r"\s*\.\. (?:(?:code|code-block|sourcecode|parsed-literal|math|figure|toctree|contents|raw|productionlist"
    r"|csv-table|list-table|flat-table|index)::|(?!.*::))|(?!\s*\.\. ).*::\s*$"
)
_BORDER = r"[ \t]*=+(?: +=+)+[ \t]*"
_NO_LINES = re.compile(  # simple tables, and what is typed to Python
    rf"^{_BORDER}\n(?:.*\n)+?{_BORDER}(?=\n\s*\n|\s*\Z)|^[ \t]*>>> .*(?:\n.*\S.*)*", re.MULTILINE
)
_RESTRUCTURED_MARKS = (
    (re.compile(r"(?::[\w:+.-]+:)?`~?([^`]+?)\s+<[^>`]*>`_{0,2}"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+.-]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"(?:^|(?<=\s))::[ \t]*$", re.MULTILINE), ""),  # before code
    (re.compile(r"::[ \t]*$", re.MULTILINE), ":"),
    (re.compile(r"[ \t]?\[(?:[\w.-]+|#[\w.-]*|\*)\]_(?!\w)"), ""),  # to a footnote or citation
    (re.compile(r"`+([^`]*)`+_{0,2}|\*\*([^*]+)\*\*|(?<!\w)\*([^*\s][^*]*)\*(?!\w)"), r"\1\2\3"),
    # an item is a paragraph
    (re.compile(r"^\s*(?:[-*+]|(?:\d+|#)\.)\s+|^[ \t]*\|[ \t]+", re.MULTILINE), "\n\n"),
)


def _restructured(text: str) -> Iterator[Line]:
    """Yield lines; a heading's level is the place of its marks, under or over and under it, as first used."""
    levels: list[tuple[str, bool]] = []
    lines = _NO_LINES.sub("", text.expandtabs(4)).splitlines()
    number, literal, is_over = 0, -1, False
    while number < len(lines):
        line, after = lines[number].rstrip(), lines[number + 1] if number + 1 < len(lines) else ""
        below = lines[number + 2] if number + 2 < len(lines) else ""
        number += 1
        if line:
            depth = len(line) - len(line.lstrip())
            if 0 <= literal < depth:
                continue
            literal = depth if _LITERAL.match(line) else -1
            line = _NOTE.sub("", line, 1)
        if _UNDERLINE.match(line) and after.strip() and below[:1] == line[:1]:
            is_over = True
            continue
        if _is_underlined(line, after):
            if (marks := (after.strip()[0], is_over)) not in levels:
                levels.append(marks)
            yield levels.index(marks) + 1, line
            number += 1
        else:
            yield 0, "" if _DIRECTIVE.match(line) else line
        is_over = False


def _is_underlined(line: str, after: str) -> bool:
    """Return whether a line is a heading by the line under it, which may be too short from 4 marks on."""
    if not line.strip() or line.startswith(" ") or _UNDERLINE.match(line) or not _UNDERLINE.match(after):
        return False
    return len(after.strip()) >= min(4, len(line.strip()))


# -- HTML

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|br|caption|center|dd|details|div|dl|dt|figcaption|figure|footer"
    "|form|h[1-6]|header|hr|li|main|nav|ol|p|section|table|t[dhr]|ul"
)
_NO_TEXT = re.compile(
    "button|footer|head|nav|noscript|pre|script|select|style|summary|svg|template|textarea|title"
)
_NAVIGATION = frozenset(  # roles and classes
    ("navigation", "search", "banner", "contentinfo", "navheader", "navfooter", "toc", "mw-editsection")
)
_NOTES = frozenset(("Caution", "Important", "Note", "Tip", "Warning"))  # inside of a section
_TITLE = re.compile(r"<title\b[^>]*>([^<]+)</title", re.IGNORECASE)


class _Page(HTMLParser):
    """The lines of a page, a block a line; what is no text (code, tables, navigation) is left out.

    A table that has a heading is the page's layout, and an element that nothing ends ends at its start.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[Line] = []
        self._words: list[str] = []
        self._skipped, self._depth = "", 0
        self._tables: list[int] = []  # where the lines of those begin that have not ended
        self._ends = Counter(re.findall(r"</(\w+)", text.lower()))  # that are still to come
        self.feed(text)
        self.close()
        self.end_line()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for key, value in attrs if key in ("role", "class") for name in (value or "").split()}
        if self._skipped:
            self._depth += tag == self._skipped
        elif self._ends[tag] > 0 and (_NO_TEXT.fullmatch(tag) or not names.isdisjoint(_NAVIGATION)):
            self._skipped, self._depth = tag, 1
        elif _BLOCKS.fullmatch(tag):
            self.end_line()
            if tag == "table":
                self._tables.append(len(self.lines))

    def handle_endtag(self, tag: str) -> None:
        self._ends[tag] -= 1
        if self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
        elif _BLOCKS.fullmatch(tag):
            self.end_line(_HEADINGS.get(tag, 0))
            if tag == "table" and self._tables:
                begun = self._tables.pop()
                if not any(level for level, _ in self.lines[begun:]):
                    del self.lines[begun:]

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self._words.append(data)

    def end_line(self, level: int = 0) -> None:
        """End the line, a heading of this level if it is not 0."""
        line = clean("".join(self._words))
        if level or line:  # a heading without words ends a section, too
            line = line.strip("¶§# \uf0c1") if level else line
            self.lines += [(0 if line in _NOTES else level, line), (0, "")]
        self._words = []


def _html(text: str) -> Iterator[Line]:
    """Yield the lines of a page, its title first if it has headings, but none of the highest level."""
    lines = _Page(text).lines
    title = _TITLE.search(text)
    if title and 1 not in (levels := {level for level, line in lines if line}) and any(levels):
        yield 1, clean(unescape(title[1]))
    yield from lines


# -- wikitext

_WIKI_LEFT_OUT = re.compile(
    r"(?s)<!--.*?-->|<ref[^>]*/>|<(ref|math|gallery|pre|code|syntaxhighlight|timeline|score)\b.*?</\1>"
    r"|__[A-Z]+__"
)
_WIKI_SHOWN = {
    **dict.fromkeys(("convert", "cvt"), "{0} {1}"),
    **dict.fromkeys(("lang", "transl"), "{1}"),
    **dict.fromkeys(("lang-", "nowrap", "nobr", "small", "abbr", "ill", "quote", "blockquote"), "{0}"),
    **dict.fromkeys(("ndash", "snd", "spnd", "mdash"), " – "),
    "'": "'",
}
"""What templates show that are part of a sentence, by their names."""
_INNERMOST = re.compile(  # a template or table, without those in it
    r"\{\{[^{}]*\}\}|^:*\{\|(?:(?!^:*\{\|).)*?^\|\}", re.DOTALL | re.MULTILINE
)
_WIKI_HEADING = re.compile(r"\s*((?:= ?){1,6})([^=].*?)\s*((?:= ?){1,6})\s*$")  # WikiText writes `= = X = =`
_WIKI_LINKS = re.compile(  # files, categories, other languages; of others the text
    r"\[\[\s*\w+:\S(?:[^\[\]]|\[\[[^\]]*\]\])*\]\]|\[\[(?:[^\]|]*\|)?([^\]]*)\]\]"
)
_WIKI_TAGS = "br|div|span|small|big|su[bp]|center|blockquote|nowiki|ref|poem|[bipsu]"
_WIKI_MARKS = (
    (re.compile(r"\[\w+://[^\s\]]*\s*([^\]]*)\]"), r"\1"),
    (re.compile(rf"'{{2,5}}|</?(?:{_WIKI_TAGS})\b[^>]*>"), ""),
    (re.compile(r"^[ \t]*[*#:;]+[ \t]*", re.MULTILINE), ""),
)


def _shown(found: re.Match[str]) -> str:
    """Return what a template shows: nothing, unless its name is in `_WIKI_SHOWN`."""
    name, *values = found[0][2:-2].split("|")
    name = name.strip().lower()
    values = [value.removeprefix("1=").removeprefix("text=") for value in values]
    return _WIKI_SHOWN.get("lang-" if name.startswith("lang-") else name, "").format(*values, "", "")


def _wikitext(text: str) -> Iterator[Line]:
    text, count = _WIKI_LINKS.sub(r"\1", _WIKI_LEFT_OUT.sub("", text)), 1
    while count:
        text, count = _INNERMOST.subn(_shown, text)
    for line in unescape(text).splitlines():
        heading = _WIKI_HEADING.match(line)
        if heading and heading[1].count("=") == heading[3].count("="):
            yield heading[1].count("="), heading[2]
        else:
            yield 0, line
        yield 0, ""


_READERS = {
    MARKDOWN: (_markdown, ()),
    RESTRUCTURED: (_restructured, _RESTRUCTURED_MARKS),
    HTML: (_html, ()),
    WIKITEXT: (_wikitext, _WIKI_MARKS),
}
