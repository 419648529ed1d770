"""Make SentEval's files from raw text, as its data/downstream/get_transfer_data.bash does."""

import re

_TREEBANK = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r'^"', "`` "),
        (r'([ (\[{<])"', r"\1 `` "),
        (r"\.\.\.", " ... "),
        (r"[,;:@#$%&]", r" \g<0> "),
        (r"([^.])([.])([\])}>\"']*) *$", r"\1 \2\3 "),
        (r"[?!]", r" \g<0> "),
        (r"[\]\[(){}<>]", r" \g<0> "),
        (r"--", " -- "),
        (r"$", " "),
        (r"^", " "),
        (r'"', " '' "),
        (r"([^'])' ", r"\1 ' "),
        (r"'([sSmMdD]) ", r" '\1 "),
        *((f"{end} ", f" {end} ") for end in ("'ll", "'re", "'ve", "n't", "'LL", "'RE", "'VE", "N'T")),
        (r" ([Cc])annot ", r" \1an not "),
        (r" ([Dd])'ye ", r" \1' ye "),
        (r" ([Gg])imme ", r" \1im me "),
        (r" ([Gg])onna ", r" \1on na "),
        (r" ([Gg])otta ", r" \1ot ta "),
        (r" ([Ll])emme ", r" \1em me "),
        (r" ([Mm])ore'n ", r" \1ore 'n "),
        (r" '([Tt])is ", r" '\1 is "),
        (r" '([Tt])was ", r" '\1 was "),
        (r" ([Ww])anna ", r" \1an na "),
        (r"  *", " "),
        (r"^ *", ""),
    )
]


def treebank(text: str) -> str:
    """Tokenise a line as SentEval's tokenizer.sed does (Robert MacIntyre, Penn Treebank, 1995).

    Tokens stand between blanks, one after the last. The sed script's rules in their order.
    """
    for pattern, replacement in _TREEBANK:
        text = pattern.sub(replacement, text)
    return text
