"""Make random parses, each from a number.

Some are sentences of a small grammar, most with errors that no parser makes; others are unrelated words, tags
and relations.
"""

import random

from augment.text.parsed import ParsedSentence


def words_of(text: str) -> list[str]:
    return text.split()


# Words by tags that they have.
WORDS = {
    "VBD": "went took cost read found put ran walked stopped was had did lay said forgave was WENT",
    "VBN": "been gone done taken broken sentenced cost read overtaken",
    "VBZ": "goes takes is 's has does needs runs says costs lies",
    "VBP": "go take are 're am 'm have 've do read need cost run",
    "VB": "go be have do dare come see run say cost let become",
    "VBG": "going being having lying",
    "MD": "will would can could may might must shall should ought 'll 'd ca wo sha Will CAN",
    "NOT": "not n't n’t not not NOT Not",
    "RB": "never only very just still longer however here better also yet soon finally n't",
    "NN": "man dog day city actress king University blue man day 北京 x2 http://a.com/b e.g. RED \U0001f600",
    "NNP": "Ann London café Zoë America Mr. Paris U.S. Peter İstanbul Red O’Neill",
    "NNS": "men dogs Americans children states queens",
    "PRP": "I he she it they them him her me us we you it one himself",
    "PRP$": "his her my its their",
    "WP": "who whom which that what",
    "DT": "the a an no any some this neither both either The No AN",
    "IN": "of to in that because if when while until as than at with",
    "CC": "and or nor but and AND and",
    "TO": "to",
    "JJ": "old red hot good better same French new many tall first blue RED honest",
    "CD": "2010 0 3.5 1,000 ½ two twenty hundred 5,336 8th one million Twelve",
    "EX": "there",
    "UH": "yes Oh no",
    "FW": "nobody nothing none nowhere everybody anything anyone e\u0301 ﬁ ß ŉ and/or",
    "POS": "'s ’s '",
    ".": ". . ? ! … ...",
    ",": ", ,",
    ":": "; : - – —",
    "``": "\" “ ‘ '",
    "''": "\" ” ’ ' ''",
    "-LRB-": "( [",
    "-RRB-": ") ]",
    "HYPH": "- /",
}
RELATIONS = words_of(
    "nsubj nsubj:pass csubj obj iobj obl obl:agent obl:npmod nmod nmod:poss amod advmod det case mark cc "
    "conj aux aux:pass cop punct acl acl:relcl advcl ccomp xcomp compound compound:prt appos nummod expl "
    "parataxis flat fixed dep discourse list det:predet cc:preconj orphan nsubjpass auxpass dobj attr acomp "
    "prep pobj pcomp neg prt poss relcl npadvmod agent dative"
)
# The two label sets where the grammar below writes relations that differ; the rest is alike.
CLEARNLP = {
    "nsubj:pass": "nsubjpass", "aux:pass": "auxpass", "obj": "dobj", "acl:relcl": "relcl", "root": "ROOT",
    "not": "neg",
    "nmod:poss": "poss", "case": "prep", "obl": "pobj", "nmod": "pobj", "nsubj": "nsubj",
}  # fmt: skip
POS = {
    "VB": "VERB", "NN": "NOUN", "MD": "AUX", "RB": "ADV", "PR": "PRON", "WP": "PRON", "EX": "PRON",
    "DT": "DET", "IN": "ADP",
    "CC": "CCONJ", "TO": "PART", "JJ": "ADJ", "CD": "NUM", "UH": "INTJ", "FW": "PRON", "PO": "PART",
}  # fmt: skip
CHINESE_WORDS = {
    "VV": "去 喜欢 说 走 必须 能 会 应该 拿走 可能 不能 不会", "VE": "有 没有", "VC": "是 不是", "VA": "好 高 OK",
    "NN": "书 天气 老师 钱 2010 http://a.com/不", "NR": "北京 London", "PN": "他 我 她",
    "AD": "不 没 很 非常 都 并非 未 别 也 最",
    "AS": "了 着 过", "LB": "被", "BA": "把", "P": "在 对", "DEC": "的", "PU": "。 ， ？ ! “ ” ； 《 》 「 」",
}  # fmt: skip
CHINESE_RELATIONS = words_of(
    "nsubj nsubj nsubj:xsubj nsubjpass dobj obj advmod neg aux aux:asp aux:modal auxpass aux:ba aux:pass cop "
    "cop conj cc ccomp xcomp advcl acl punct nmod case mark dep csubj nsubj:pass"
)
CHINESE_POS = {"V": "VERB", "N": "NOUN", "P": "ADP", "A": "ADV", "L": "ADP", "B": "ADP", "D": "PART"}


def random_parse(seed: int, language: str = "en") -> ParsedSentence:
    """Return the sentence of a number: up to some thirty words, with a forest that need not be projective."""
    chance = random.Random(seed)
    if language != "en":
        return _sentence(chance, _unrelated(chance, CHINESE_WORDS, CHINESE_RELATIONS), language)
    if chance.random() < 0.25:
        return _sentence(chance, _unrelated(chance, WORDS, RELATIONS), language)
    rows = _Grammar(chance, chance.random() < 0.5).text()
    for _ in range(chance.choice([0, 0, 1, 1, 2, 3, 6])):
        i = chance.randrange(len(rows))
        row, kind = rows[i], chance.randrange(4)
        if kind == 0:
            row[0] = _word(chance, WORDS, chance.choice(list(WORDS)))
        elif kind == 1:
            row[1] = chance.choice(list(WORDS))
        elif kind == 2:
            row[2] = chance.choice(RELATIONS)
        else:
            j = chance.randrange(len(rows))
            path = [j]
            while rows[path[-1]][3] != path[-1]:
                path.append(rows[path[-1]][3])
            row[3] = row[3] if i in path else j
    return _sentence(chance, rows, language)


class _Grammar:
    """Make rows [word, tag, relation, head] of sentences.

    They have subjects, auxiliaries, negations, quotes, coordination and clauses. Every method appends words
    and returns the number of the head, whose own head its caller sets.
    """

    def __init__(self, chance: random.Random, clearnlp: bool):
        self.rows: list[list] = []
        self.chance, self.clearnlp = chance, clearnlp

    def text(self) -> list[list]:
        root = -1
        for _ in range(self.chance.choice([1, 1, 1, 2, 3])):
            quoted = self.chance.random() < 0.15
            opening = self.word("``", "punct") if quoted else None
            if self.chance.random() < 0.1:
                self.word(self.chance.choice(["CC", "UH", "RB"]), "advmod")
            first = len(self.rows) if opening is None else opening
            head = self.clause(0)
            self.word(".", "punct")
            if quoted:
                self.word("''", "punct")
            self.on(head, range(first, len(self.rows)))
            root = root if self.chance.random() < 0.3 and root >= 0 else head  # a parser may see one sentence
            self.rows[head][2:] = ["root", head] if root == head else ["parataxis", root]
        for row in self.rows:
            row[3] = root if row[3] is None else row[3]
            row[2] = CLEARNLP.get(row[2], row[2]) if self.clearnlp else {"not": "advmod"}.get(row[2], row[2])
        return self.rows

    def word(self, tag: str, relation: str, head: int | None = None) -> int:
        self.rows.append([_word(self.chance, WORDS, tag), "RB" if tag == "NOT" else tag, relation, head])
        return len(self.rows) - 1

    def on(self, head: int, words) -> None:
        """Give those of some words that have no head yet one."""
        for i in words:
            if self.rows[i][3] is None and i != head:
                self.rows[i][3] = head

    def noun(self, relation: str, depth: int) -> int:
        chance, first = self.chance, len(self.rows)
        if chance.random() < 0.3:
            return self.word(chance.choice(["PRP", "PRP", "FW", "EX", "CD", "WP"]), relation)
        if chance.random() < 0.6:
            self.word(chance.choice(["DT", "DT", "DT", "PRP$", "CD"]), "det")
        if chance.random() < 0.3:
            self.word("JJ", "amod")
        if chance.random() < 0.15:
            self.word("NNP", "compound")
        quoted = chance.random() < 0.08
        if quoted:
            self.word("``", "punct")
        head = self.word(chance.choice(["NN", "NNS", "NNP"]), relation)
        if quoted:
            self.word("''", "punct")
        if depth < 2 and chance.random() < 0.15:
            self.oblique("nmod", depth + 1)
        if depth < 2 and chance.random() < 0.12:
            self.rows[self.clause(depth + 1, relative=True)][2] = "acl:relcl"
        if depth < 2 and chance.random() < 0.1:
            joint = self.word("CC", "cc")
            self.on(self.noun("conj", depth + 1), (joint,))
        self.on(head, range(first, len(self.rows)))
        self.rows[head][3] = None
        return head

    def oblique(self, relation: str, depth: int) -> int:
        case = self.word("IN", "case")
        noun = self.noun(relation, depth)
        if self.clearnlp:
            self.rows[noun][3] = case
            return case
        self.rows[case][3] = noun
        return noun

    def clause(self, depth: int, relative: bool = False) -> int:
        """Append a subject, auxiliaries, negations and a verb, or a copula and its complement."""
        chance, first = self.chance, len(self.rows)
        passive = chance.random() < 0.15
        subject = "nsubj:pass" if passive else "nsubj"
        if relative:
            self.word("WP", subject)
        elif depth and chance.random() < 0.5:
            self.word("IN", "mark")
        if not relative and chance.random() < 0.9:
            self.noun(subject, depth + 1)
        auxiliaries = chance.choice(
            [[], [], [], ["MD"], ["VBZ"], ["VBP"], ["VBD"], ["MD", "VB"], ["VBZ", "VBN"], ["VBD", "VBN"]]
        )
        if chance.random() < 0.1:
            self.word("RB", "advmod")
        for number, tag in enumerate(auxiliaries):
            self.word(tag, "aux:pass" if passive and number + 1 == len(auxiliaries) else "aux")
            if number == 0 and chance.random() < 0.4:
                self.word("NOT", "not")
        if chance.random() < 0.1:
            self.word(chance.choice(["RB", "NOT"]), "advmod")
        finite = chance.choice(["VBD", "VBZ", "VBP"])
        if chance.random() < 0.2:
            verb = self.word("VB" if auxiliaries else finite, "cop")
            if chance.random() < 0.3:
                self.word("NOT", "not", verb if self.clearnlp else None)
            said = self.word("JJ", "attr") if chance.random() < 0.5 else self.noun("attr", depth + 1)
            head = verb if self.clearnlp else said
        else:
            head = self.word(chance.choice(["VB", "VBN", "VBG"]) if auxiliaries else finite, "root")
            if chance.random() < 0.5:
                self.noun("obj", depth + 1)
        if chance.random() < 0.3:
            self.oblique("obl", depth + 1)
        if depth < 2 and chance.random() < 0.3:
            if chance.random() < 0.3:
                self.word(",", "punct")
            joint = self.word("CC", "cc")
            joined = (
                self.clause(depth + 1) if chance.random() < 0.6 else self.word(self.rows[head][1], "conj")
            )
            self.rows[joined][2] = "conj"
            self.rows[joint][3] = joined
        if depth < 2 and chance.random() < 0.2:
            self.rows[self.clause(depth + 1)][2] = chance.choice(["advcl", "ccomp", "xcomp", "acl"])
        self.on(head, range(first, len(self.rows)))
        self.rows[head][3] = None
        return head


def _unrelated(chance: random.Random, words: dict[str, str], relations: list[str]) -> list[list]:
    """Return rows of up to 16 words in one or two trees, in random order.

    Each word depends on one before it, often the nearest.
    """
    order = list(range(chance.randrange(17)))
    rows: list[list] = []
    for _ in order:
        tag = chance.choice(list(words))
        word = _word(chance, words, tag)
        rows.append(
            [
                word,
                tag if chance.random() < 0.9 else chance.choice(list(words)),
                chance.choice(relations),
                None,
            ]
        )
    chance.shuffle(order)
    for place, i in enumerate(order):
        if not place or (place == 1 and chance.random() < 0.2):
            rows[i][2:] = [chance.choice(["root", "ROOT"]), i]
            continue
        nearest = min(order[:place], key=lambda j: abs(j - i))
        rows[i][3] = (
            nearest
            if chance.random() < 0.5
            else order[0]
            if chance.random() < 0.6
            else chance.choice(order[:place])
        )
    return rows


def _word(chance: random.Random, words: dict[str, str], tag: str) -> str:
    word = chance.choice(words[tag].split())
    draw = chance.random()
    return word.upper() if draw < 0.02 else word[:1].upper() + word[1:] if draw < 0.08 else word


def _sentence(chance: random.Random, rows: list[list], language: str) -> ParsedSentence:
    """Write rows as text, spaced as in English or Chinese, sometimes with a space too many or too few."""
    text = chance.choice(["", "", "", "", " ", '"'])
    starts, ends, tags, pos, lemmas = [], [], [], [], []
    capital = chance.random() < 0.8
    for number, (word, tag, relation, _) in enumerate(rows):
        if (
            capital
            and language == "en"
            and (number == 0 or (rows[number - 1][1] == "." and chance.random() < 0.9))
        ):
            word = word[:1].upper() + word[1:]
        attached = word[0] in ".,;:!?'’)]”/" or word.lower() in ("n't", "n’t")
        attached = attached or (number and rows[number - 1][1] in ("``", "HYPH"))
        if number and chance.random() < (0.03 if attached or language != "en" else 0.97):
            text += chance.choice([" "] * 30 + ["  ", "\u00a0", "\n"])
        starts.append(len(text))
        text += word
        ends.append(len(text))
        tags.append(tag)
        auxiliary = relation in ("aux", "aux:pass", "auxpass", "cop")
        usual = {"NNP": "PROPN", "NR": "PROPN"}.get(tag) or (
            POS.get(tag[:2]) if language == "en" else CHINESE_POS.get(tag[0])
        )
        pos.append("AUX" if auxiliary else "PART" if word.lower() == "not" else usual or "PUNCT")
        if chance.random() < 0.02:
            pos[-1] = chance.choice(["NOUN", "VERB", "PUNCT", "SCONJ", "SYM", "X", "ADJ", "AUX", ""])
        lemmas.append(chance.choice([word.lower(), word.lower(), word.lower(), word, "go", "be"]))
    text += chance.choice(["", "", "", "", " ", "\n"])
    heads, deps = tuple(row[3] for row in rows), tuple(row[2] for row in rows)
    return ParsedSentence(
        text, tuple(starts), tuple(ends), tuple(tags), tuple(pos), tuple(lemmas), heads, deps, language
    )
