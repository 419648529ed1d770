"""Find the sections of a document in Markdown, reStructuredText, HTML or wikitext, without its marks."""

import re
from collections.abc import Callable, Iterable, Iterator
from html import escape, unescape
from html.parser import HTMLParser

from markdown_it import MarkdownIt

from augment.text.cleaning import clean
from pretrain.prepare.wrapping import one_line

MARKDOWN, RESTRUCTURED, HTML, WIKITEXT = "markdown", "reStructuredText", "html", "wikitext"
MARKUP = {
    **dict.fromkeys((".md", ".markdown", ".mdx", ".qmd", ".rmd"), MARKDOWN),
    ".rst": RESTRUCTURED,
    **dict.fromkeys((".html", ".htm", ".xhtml"), HTML),
    **dict.fromkeys((".wiki", ".wikitext", ".mediawiki"), WIKITEXT),
}
"""How a file's name ends -> the markup of its headings."""

Line = tuple[int, str]
"""The level of a heading from 1 on, or 0 of other text, and the line."""
Pair = tuple[str, str]
Marks = Iterable[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]


def sections(text: str, markup: str, title: str = "", name: str = "") -> list[Pair]:
    """Return (heading, section) of a document, in order, without marks; lines of a paragraph are joined.

    A heading has those above it before it, the document's first: `tar: Options`. A section ends where the
    next heading begins, of whatever level. title: stands above the whole document; "": nothing does. name:
    of a document in Markdown, its title if it has none.
    """
    read, marks = _READERS[markup]
    lines = list(read(text))
    if name and not (_front_title(_FRONT.match(text)) or any(level == 1 and line for level, line in lines)):
        title = name
    path = [title] if title else []
    found: list[tuple[str, list[str]]] = [(title, [])]
    for level, line in lines:
        if level:
            above = [*path, *[""] * level][: level - 1]  # of a document that begins with one of level 2
            path = [*above, _plain(line, marks)]
            found.append((": ".join(dict.fromkeys(filter(None, path))), []))
        else:
            found[-1][1].append(line)
    bodies = ((heading, _plain("\n".join(body), marks)) for heading, body in found)
    return [(heading, body) for heading, body in bodies if body or heading not in ("", name)]


def _plain(text: str, marks: Marks) -> str:
    """Return a text without marks, a paragraph a line."""
    for pattern, instead in marks:
        text = pattern.sub(instead, text)
    return "\n".join(filter(None, map(one_line, re.split(r"\n\s*\n", text))))


# -- Markdown

_RENDERER = MarkdownIt("commonmark", {"maxNesting": 200}).enable(["table", "strikethrough"])
_FRONT = re.compile(r"(?ms)\A(---|\+\+\+)[ \t]*\n(?=[\w-]+[ \t]*[:=])(.*?)^\1[ \t]*\n")  # of site generators
_FRONT_TITLE = re.compile(r"""^title[ \t]*[:=][ \t]*["']?([^\s"'>|].*?)["']?[ \t]*$""", re.MULTILINE)
_INDENTED = re.compile(  # mkdocs' notes and tabs, with their titles
    r"""(?m)^( *)(?:(?:!!!|\?\?\?\+?) ?[\w-]+(?: inline| end)*|===[!+]?(?= *"))(?: +"(.*)")? *\n"""
    r"((?:(?: *\n)*\1 {4}.*\n)+)"
)
_FENCES = re.compile(r"^:::.*|(?<=\S)[ \t]*\{[#.][^{}\n]*\}[ \t]*$", re.MULTILINE)  # of containers; an anchor
# code, left; footnotes; what notes embed, link (not in a link, of a list or a class) and mark between words;
# what generators put in: its text
_MARKS = re.compile(
    r"(?m)(`+[^`\n]*`+)|^ {0,3}\[\^[^\[\]\s]+\]:|\[\^[^\[\]\s]+\]"
    r"|!\[\[[^\[\]\n]*\]\](?![\[(])"
    r"|(?<![\w\[\])`\\])\[\[(?![\s:-]|\d+,)(?:[^\[\]|\n]*\|)?([^\[\]|\n]+)\]\](?![\[(])"
    r"|(?<![\w=])==(?=[^\w\s=]{,4}[^\W\d_]{2})([^=\n]*[^\W\d_]{2}[^\w\s=]{,4})==(?![\w=])"
    r"|\{\{(?:<|%(?=[ /]))[ /]{,3}(?!and |or |und |oder )\w"
    r'(?:[^{}\n]{,99}?\btext="([^"\n]*)")?[^{}\n]*[>%]\}\}'
    r"|\{%[+-]? {1,3}(?!and |or |und |oder )\w[^{}\n]*%\}"
)
_BEGINS = re.compile(r"[ \t]*(?:[\d#>+=|:-]|[*_~]+(?!\S))")  # a block, at the beginning of a line
_SIGNS = re.compile(  # a box to tick, a note
    r"(<li>(?:\n<p>)?)\[[ xX]\] |(<blockquote>\n<p>)\[![\w-]+\][+-]?"
)


def _markdown(text: str) -> Iterator[Line]:
    """Yield the lines of a page as CommonMark renders it, its front matter's title if it has no other."""
    text = text.expandtabs(4) + "\n"
    front = _FRONT.match(text)
    text, notes = text[front.end() :] if front else text, 1
    while notes:  # and those in notes
        text, notes = _INDENTED.subn(_outdented, text)
    head = f"<title>{escape(title)}</title>" if (title := _front_title(front)) else ""
    page = _RENDERER.render(_MARKS.sub(_unmarked, _FENCES.sub("", text)))
    return _html(head + _SIGNS.sub(r"\1\2", page))


def _front_title(front: re.Match[str] | None) -> str:
    """Return the title that a page's front matter gives it, found by `_FRONT`; "": none."""
    title = front and _FRONT_TITLE.search(front[2])
    return title[1] if title else ""


def _unmarked(mark: re.Match[str]) -> str:
    """Return what is shown of a mark, which begins no heading, list or the like, nor lets what follows."""
    code, *shown = mark.groups("")
    text = code or "".join(shown).strip()
    if not text:
        return "&#32;" if mark[0][0] in "!{" and _BEGINS.match(mark.string, mark.end()) else ""
    return text if code or not _BEGINS.match(text) else f"&#{ord(text[0])};{text[1:]}"


def _outdented(note: re.Match[str]) -> str:
    return f"\n{note[1]}{note[2] or ''}\n\n" + re.sub("(?m)^ {4}", "", note[3])


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
_BORDER = r" *=+(?: +=+)+"
_NO_LINES = re.compile(  # simple tables, and what is typed to Python, up to a blank line
    rf"(?:\A|(?<=\n\n)){_BORDER}\n(?:.+\n)*{_BORDER}(?=\n\n|\n*\Z)|^ *>>> .*(?:\n.+)*", re.MULTILINE
)
_RESTRUCTURED_MARKS = (
    (re.compile(r"(?::[\w:+.-]+:)?`~?([^`]+?)\s+<[^>`]*>`_{0,2}"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+.-]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"(?:^|(?<=\s))::[ \t]*$", re.MULTILINE), ""),  # before code
    (re.compile(r"::[ \t]*$", re.MULTILINE), ":"),
    (re.compile(r"[ \t]?\[(?:[\w.-]+|#[\w.-]*|\*)\]_(?!\w)"), ""),  # to a footnote or citation
    (re.compile(r"`+([^`]*)`+_{0,2}|\*\*([^*]+)\*\*|(?<!\w)\*([^*\s][^*]*)\*(?!\w)"), r"\1\2\3"),
    # an item is a paragraph
    (re.compile(r"^[ \t]*(?:[-*+]|(?:\d+|#)\.)\s+|^[ \t]*\|[ \t]+", re.MULTILINE), "\n\n"),
    (re.compile(r"(?<!\\)\\ "), ""),  # parts marks from what follows
)


def _restructured(text: str) -> Iterator[Line]:
    """Yield lines; a heading's level is the place of its marks, under or over and under it, as first used."""
    levels: list[tuple[str, bool]] = []
    text = "\n".join(line.rstrip() for line in text.expandtabs(4).splitlines())
    lines = _NO_LINES.sub("", text).splitlines()
    number, literal, is_over = 0, -1, False
    while number < len(lines):
        line, after = lines[number], lines[number + 1] if number + 1 < len(lines) else ""
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
    "|form|h[1-6]|header|hr|li|main|nav|ol|p|section|summary|table|t[dhr]|ul"
)
_NO_TEXT = re.compile(  # elements, and those with such an attribute
    "button|footer|nav|noscript|pre|script|select|style|svg|template|textarea|title"
    "|div role (navigation|contentinfo)|div class (nav(header|footer)|toc)|span class mw-editsection"
)
_NOTES = re.compile(  # DocBook's, in a section
    r'<h3 class="title">\s*(?:<a [^<>]*></a>)?(Caution|Important|Note|Tip|Warning)</h3>'
)
_READINGS = re.compile(r"(?i)<r[pt](?:\s[^<>]*)?>[^<]*(?:</r[pt]>)?")  # above ideographs


class _Page(HTMLParser):
    """The lines of a page, a block a line; what is no text (code, tables, navigation) is left out.

    A table that has a heading is the page's layout. kept: elements of which nothing is left out. skipped: the
    element that was being left out when the page ended, as its end is missing.
    """

    def __init__(self, text: str, kept: set[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[Line] = []
        self.title, self.skipped = "", ""
        self._kept, self._depth = kept, 0
        self._words: list[str] = []
        self._in_heading = False
        self._tables: list[int] = []  # where the lines of those begin that have not ended
        self.feed(text)
        self.close()
        self.end_line()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [tag, *(f"{tag} {name} {value}" for name, value in attrs)]
        if tag in ("article", "body", "h1", "main"):  # what has these is no navigation: an end is missing
            self.skipped = ""
        if self.skipped:
            self._depth += tag == self.skipped
        elif tag not in self._kept and any(map(_NO_TEXT.fullmatch, names)):
            self.skipped, self._depth = tag, 1
        elif self._in_heading and tag in ("br", "div"):
            self._words.append(" ")
        elif _BLOCKS.fullmatch(tag):
            self.end_line()
            self._in_heading = tag in _HEADINGS
            if tag == "table":
                self._tables.append(len(self.lines))

    def handle_endtag(self, tag: str) -> None:
        if self.skipped:
            self._depth -= tag == self.skipped
            self.skipped = self.skipped if self._depth else ""
        elif _BLOCKS.fullmatch(tag) and not (self._in_heading and tag == "div"):
            self.end_line(_HEADINGS.get(tag, 0))
            if tag == "table" and self._tables:
                begun = self._tables.pop()
                if not any(level for level, _ in self.lines[begun:]):
                    del self.lines[begun:]

    def handle_data(self, data: str) -> None:
        is_mark = self._in_heading and self.lasttag == "a" and data.strip() in ("¶", "§", "#", "\uf0c1")
        if not self.skipped and not is_mark:  # of a link to the heading
            self._words.append(data)
        elif self.skipped == "title":
            self.title += data

    def end_line(self, level: int = 0) -> None:
        """End the line, a heading of this level if it is not 0."""
        line = one_line("".join(self._words))
        if level or line:  # a heading without words ends a section, too
            self.lines += [(level, line), (0, "")]
        self._words, self._in_heading = [], False


def _html(text: str) -> Iterator[Line]:
    """Yield the lines of a page, its title first if it has headings, but none of the highest level."""
    text, kept = _NOTES.sub(r"<p>\1</p>", _READINGS.sub("", text)), set[str]()
    page = _Page(text, kept)
    while page.skipped:  # once more at most for each element, without losing what follows it
        kept.add(page.skipped)
        page = _Page(text, kept)
    title, levels = clean(page.title), {level for level, line in page.lines if line}
    if title and 1 not in levels and any(levels):
        yield 1, title
    yield from page.lines


# -- wikitext

_WIKI_LEFT_OUT = re.compile(
    r"(?s)<!--.*?-->|<ref[^<>]*/>|__[A-Z]+__"
    r"|<(ref|math|gallery|pre|syntaxhighlight|timeline|score)\b(?:(?!<\1\b).)*?</\1>"
)
_WIKI_SHOWN = {
    **dict.fromkeys(("convert", "cvt"), "{0} {1}"),
    **dict.fromkeys(("lang", "transl"), "{last}"),
    **dict.fromkeys(("lang-", "nowrap", "nobr", "small", "abbr", "ill", "quote", "blockquote"), "{0}"),
    **dict.fromkeys(("ndash", "snd", "spnd", "mdash"), " – "),
    "'": "'",
}
"""What templates show that are part of a sentence, by their names."""
_TEXT, _NAMED = re.compile(r"\A\s*(?:\d|text|quote)\s*="), re.compile(r"\s*\w+\s*=")  # values of templates
_RANGES = re.compile(r"(?<=\d)\|(to|and|or|by|x|-|–)\|(?=\d)")  # of what is converted
_INNERMOST = re.compile(  # a template or table, without those in it
    r"\{\{[^{}]*\}\}|^:*\{\|(?:(?!^:*\{\|).)*?^\|\}", re.DOTALL | re.MULTILINE
)
_WIKI_HEADING = re.compile(r"\s*((?:= ?){1,6})([^=].*?)\s*((?:= ?){1,6})\s*$")  # WikiText writes `= = X = =`
_WIKI_LINKS = re.compile(  # files, categories, other languages; of others the text
    r"\[\[\s*\w+:\S(?:[^\[\]\n]|\[\[[^\[\]\n]*\]\])*\]\]|\[\[(?:[^\[\]|\n]*\|)?([^\[\]\n]*)\]\]"
)
_WIKI_TAGS = "br|code|div|span|small|big|su[bp]|center|blockquote|nowiki|ref|poem|[bipsu]"
_WIKI_MARKS = (
    (re.compile(r"\[\w+://[^\s\[\]]*[ \t]*([^\[\]\n]*)\]"), r"\1"),
    (re.compile(rf"'{{2,5}}|</?(?:{_WIKI_TAGS})\b[^<>\n]*>"), ""),
    (re.compile(r"^[ \t]*[*#:;]+[ \t]*", re.MULTILINE), ""),
    (re.compile(r"&#?\w+;"), lambda found: unescape(found[0])),
)


def _shown(found: re.Match[str]) -> str:
    """Return what a template shows: nothing, unless its name is in `_WIKI_SHOWN`."""
    name, *given = _RANGES.sub(r" \1 ", found[0][2:-2]).split("|")
    name = name.strip().lower()
    values = [_TEXT.sub("", value) for value in given if _TEXT.match(value) or not _NAMED.match(value)]
    shown = _WIKI_SHOWN.get("lang-" if name.startswith("lang-") else name, "")
    return shown.format(*values, "", "", last="".join(values[-1:]))


def _wikitext(text: str) -> Iterator[Line]:
    text, templates = _WIKI_LINKS.sub(r"\1", _WIKI_LEFT_OUT.sub("", text)), 1
    while templates:
        text, templates = _INNERMOST.subn(_shown, text)
    for line in text.splitlines():
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
