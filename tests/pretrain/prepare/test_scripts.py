"""Text of scripts without blanks, and of others than Latin: cut, joined and spelled as its readers would."""

import textwrap
from pathlib import Path

import pytest

from augment.text.cleaning import clean
from pretrain.common.errors import not_utf8
from pretrain.config.data import Source, data_config
from pretrain.data.tokenizer import save_tokenizer, train_tokenizer
from pretrain.prepare.__main__ import summary
from pretrain.prepare.run import prepare
from pretrain.prepare.sentences import is_prose, split_sentences
from pretrain.prepare.sources.markup import HTML, MARKDOWN, RESTRUCTURED, sections
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structured import structured
from pretrain.prepare.wrapping import margin, unwrap

# 羅生門, by Akutagawa
RASHOMON = [
    "ある日の暮方の事である。一人の下人が、羅生門の下で雨やみを待っていた。広い門の下には、この男のほかに誰もいない。"
    "ただ、所々丹塗の剥げた、大きな円柱に、蟋蟀が一匹とまっている。羅生門が、朱雀大路にある以上は、この男のほかにも、"
    "雨やみをする市女笠や揉烏帽子が、もう二三人はありそうなものである。それが、この男のほかには誰もいない。",
    "何故かと云うと、この二三年、京都には、地震とか辻風とか火事とか饑饉とか云う災がつづいて起った。そこで洛中のさびれ方は"
    "一通りではない。旧記によると、仏像や仏具を打砕いて、その丹がついたり、金銀の箔がついたりした木を、路ばたにつみ重ねて、"
    "薪の料に売っていたと云う事である。",
    "その代りまた鴉がどこからか、たくさん集って来た。昼間見ると、その鴉が何羽となく輪を描いて、高い鴟尾のまわりを啼きながら、"
    "飛びまわっている。ことに門の上の空が、夕焼けであかくなる時には、それが胡麻をまいたようにはっきり見えた。",
]
FORBIDDEN = "、。」）"  # at the beginning of a line


def wrapped(paragraph: str, columns: int) -> str:
    """Return a paragraph as an e-mail has it: no line begins with a mark that closes."""
    lines, size = [""], columns // 2
    for place, character in enumerate(paragraph):
        hangs = paragraph[place + 1 : place + 2] in tuple(FORBIDDEN) and len(lines[-1]) + 1 == size
        if (len(lines[-1]) >= size or hangs) and character not in FORBIDDEN:
            lines.append("")
        lines[-1] += character
    return "\n".join(lines)


@pytest.mark.parametrize("columns", [60, 70, 76])
@pytest.mark.parametrize("between", ["\n\n", "\n　"])
def test_wrapped_japanese_comes_back_without_blanks(columns, between):
    text = between.join(wrapped(paragraph, columns) for paragraph in RASHOMON)
    assert columns - 4 <= margin(text) <= columns + 2
    joined = unwrap(text, margin(text))
    assert [clean(line) for line in joined.split("\n") if line] == RASHOMON


def test_lines_of_japanese_that_are_whole_are_not_joined():
    assert margin("\n".join(RASHOMON * 4)) == 0
    sentences = [sentence for paragraph in RASHOMON * 3 for sentence in split_sentences(paragraph)]
    assert margin("\n".join(sentences)) == 0
    assert margin("\n".join(f"{n}．春の海ひねもすのたりのたりかな、松島やああ松島や" for n in range(40))) == 0


@pytest.mark.parametrize(
    "line",
    [
        "山川花鳥風月人心空海上，雨雪夜朝日本語文章春秋",  # verses of eleven and eleven
        "用語{}：山川花鳥風月、人心空海雨雪夜朝日本語文章",
        "乙：山川花鳥風月人心，空海雨雪夜朝日本語文章春夏",
        "北京市朝阳区建国门外大街{}号院一号楼，一单元",
        "国家统计局发布今年数据，经济运行总体保持平稳",
    ],
)
def test_lines_of_lists_and_verses_are_not_joined(line):
    """They have one length and inner commas, as wrapped text has, but no sentence ends inside of them."""
    blocks = ["\n".join(line.format(10 * n + m) for m in range(6)) for n in range(10)]
    assert margin("\n\n".join(blocks)) == 0 == margin("\n".join(blocks))


def test_korean_wrapped_by_characters_comes_back():
    text = 9 * "오늘은 날씨가 좋아서 우리는 공원에 갔습니다. 그곳에는 나무가 많이 있고, 사람들이 있었습니다. "
    wrapped = "\n\n".join("\n".join(textwrap.wrap(text[n:].strip(), 80)) for n in range(5))
    assert unwrap(wrapped, margin(wrapped)) == "\n\n".join(" ".join(text[n:].split()) for n in range(5))


@pytest.mark.timeout(20)
def test_long_paragraphs_without_marks_are_joined_in_time():
    """Classical Chinese has none: the search for a cut word was cubic in the length of a paragraph."""
    lines = ["天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏閏餘成歲律呂調陽"] * 400
    assert unwrap("\n".join(lines), 66) == "".join(lines)


def test_a_korean_line_goes_on_after_a_blank():
    assert unwrap("우리는 오늘\n학교에 갑니다", 0) == "우리는 오늘 학교에 갑니다"
    assert unwrap("今日は\n雨だ\nDebian の\n文書", 0) == "今日は雨だ Debian の文書"


@pytest.mark.parametrize(
    ("text", "markup"),
    [
        ("# 題\n\nこれは日本語の文\nです。次の\n  文", MARKDOWN),
        ("題\n====\n\nこれは日本語の文\nです。次の\n文", RESTRUCTURED),
        ("<h1>題</h1><p>これは日本語の文\n  です。<b>次の</b>\n<i>文</i></p>", HTML),
    ],
)
def test_a_line_break_of_markup_is_no_blank_in_japanese(text, markup):
    assert sections(text, markup) == [("題", "これは日本語の文です。次の文")]


def test_readings_above_ideographs_are_no_text():
    for ruby in (
        "<ruby>猫<rt>ねこ</rt></ruby>",
        "<ruby><rb>猫</rb><rp>（</rp><rt>ねこ</rt><rp>）</rp></ruby>",
        "<ruby>猫<rp>(<rt class=x>ねこ<rp>)</ruby>",
    ):
        assert sections(f"<h1>題</h1><p>吾輩は{ruby}である。", HTML) == [("題", "吾輩は猫である。")]
    own = "<h1>T</h1><rt-text size=2>Fresh</rt-text> and <rp-a>red</rp-a>."  # of the page's own
    assert sections(own, HTML) == [("T", "Fresh and red.")]


def test_marks_of_restructured_text_end_without_a_blank():
    text = "題\n====\n\nこれは\\ **強調**\\ です。The :ref:`file <x>`\\ s of it\\ *x*."
    assert sections(text, RESTRUCTURED) == [("題", "これは強調です。The files of itx.")]


@pytest.mark.parametrize(
    "text",
    [
        "「そうだ。」と彼は言った。|次の日。",
        "彼は「今日は雨だ。明日は晴れだろう。」と言った。|それだけだ。",
        "「モーニング娘。」は歌手だ。",
        "詳細は（図1を参照。）を見る。",
        "「行くぞ！」|「おう！」と叫んだ。",
        "「行くぞ。」|彼は言った。",
        "本当?。|次。",
        "ကျွန်တော်သွားမယ်။| သူလာမယ်။",
        "ខ្ញុំទៅផ្សារ។| គាត់មក។",
        "ነገ እመጣለሁ።| ደህና ሁን።",
        "Ես գնում եմ։| Նա գալիս է։",
        "彼は『雨。』と答え、「晴れ？いや、曇り！」などとも言う。|雪。",
        "彼は「言った。|それは長い。",  # never closed
        "第6章 手法: 6.3. データ",
        "4.2.10. Загрузка",
        "The chapter: 4.1. Methods of it",
        "It costs 4.10.| The other is: 42.| It is 5.",
        "結果を示す．|ただし，円周率は３．１４で，図１．２に示す．|次へ．",
        "ｺﾚﾊﾃｽﾄﾃﾞｽ｡|ﾂｷﾞﾉﾌﾞﾝﾃﾞｽ｡",
        "Роман написал А. С. Пушкин в 1830 г. в Болдине.| Затем Л. Н. Толстой (см. Гл. 2).| Это я.| Да.",
        "Np. Jan Kowalski, рис. 3, tj. J. Ł. Nowak, przyszedł.| Potem Ż. Kot.",
        "Ο Κ. Π. Καβάφης γεννήθηκε στην Αλεξάνδρεια.| Τέλος.",
        "The problem is in NP.| However, (np. Kraków, ul. Dworcowa, ang. Ward, tj. PKP).| It is TJ.| He is.",
        "Add 20 ul.| Mix it.| Длина 10 см.| Ширина 5 см (см. Гл. 2 и рис. 3).| Ели рис.| Всего 20 стр.| Да.",
        "「そうか。」|もう遅い。|（昨日。）|ところが、雨だ。|「いや。」|はい、とも言う。|「ん。」|にっこり笑う。",
        "「そうか。」とこの人も言い、「雨。」はいい題だ。",
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text):
    assert split_sentences(text.replace("|", "")) == [sentence.strip() for sentence in text.split("|")]


@pytest.mark.parametrize("text", ["ភាសាខ្មែរជាភាសាផ្លូវការ។", "ကျွန်တော်သွားမယ်။", "ภาษาไทยเป็นภาษาราชการ"])
def test_a_sentence_without_blanks_is_prose(text):
    assert is_prose(text, 4, 0.6)


def test_a_long_run_of_thai_is_no_unknown_word():
    clause = "เมื่อเปิดใช้ก็จะล้างรายชื่อของคำที่เก็บบันทึกไว้เมื่อปิดเอกสารปัจจุบันและรายชื่อจะยังคงอยู่จนกว่าคุณจะออกจากชุดออฟฟิศ"
    tokenizer = train_tokenizer([clause] * 5, "wordpiece", 256)
    assert len(clause) > 100 and tokenizer.unk_token_id not in tokenizer(clause)["input_ids"]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (RASHOMON[0], "cp932"),
        (RASHOMON[0], "euc-jp"),
        ("Роман написал Пушкин.", "cp1251"),
        ("Роман написал Пушкин.", "koi8-r"),
        ("שלום עליכם", "cp1255"),
        ("今天天气很好", "gb18030"),
        ("Wzięła żółtą książkę, która tu leżała.", "cp1250"),
    ],
)
def test_a_file_of_another_script_is_not_called_western(text, encoding):
    """Who converts it as Western text gets letters without sense, and no error."""
    said = not_utf8(Path("a.txt"), text.encode(encoding), "byte 0")
    assert "CP932" in said and "CP1251" in said and "iconv -f ENCODING -t UTF-8 a.txt" in said
    assert "LATIN1" not in said and "CP1252" not in said


@pytest.mark.parametrize(
    ("declared", "encoding", "text"),
    [
        ("Shift_JIS", "cp932", "①髙"),
        ("x-sjis", "cp932", "①髙"),
        ("gb2312", "gb18030", "镕"),
        ("ks_c_5601-1987", "cp949", "똠"),
        ("ISO-8859-9", "cp1254", "“ğ”"),
    ],
)
def test_a_page_is_read_as_browsers_read_its_encoding(declared, encoding, text, tmp_path):
    """The names stand for larger encodings than they say."""
    path = tmp_path / "a.html"
    path.write_bytes(f'<meta charset="{declared}"><h1>T</h1><p>{text} and'.encode(encoding))
    source, faults = Source(source=str(path)), RowFaults()
    (task,) = plan_tasks([source], structure=True)
    (document,) = structured(task, source, faults)
    assert document.sections == (("T", f"{text} and"),) and not faults.counts


@pytest.mark.parametrize("unit", ["sentence", "record", "sequence"])
def test_text_that_a_tokenizer_does_not_know_is_counted_and_told(unit, tmp_path):
    """A published English tokenizer makes [UNK] of whole sentences in other scripts."""
    known = "The river is blue today, and number {} of its many boats came home."
    lines = [known.format(n) for n in range(60)] + [
        f"Роман {n} написал тот самый человек." for n in range(40)
    ]
    save_tokenizer(train_tokenizer(lines[:60], "wordpiece", 320), tmp_path / "given")
    (tmp_path / "a.txt").write_text("\n".join(lines))
    found = {}
    for kind, given in {"given": str(tmp_path / "given"), "own": None}.items():
        keys = {"sources": [str(tmp_path / "a.txt")], "unit": unit, "tokenizer": given, "heldout": 0.05}
        config = data_config(keys | {"tokenizer_type": "wordpiece", "vocabulary": 512, "max_length": 32})
        found[kind] = prepare(config, tmp_path / kind / "out", workers=1, progress=False)
    said = {kind: summary(manifest, tmp_path / kind / "out") for kind, manifest in found.items()}
    assert found["given"]["counts"]["tokens_unknown"] == 200 and found["own"]["counts"]["tokens_unknown"] == 0
    (line,) = (line for line in said["given"].splitlines() if "WARNING" in line and "does not know" in line)
    assert "name another --tokenizer" in line and "does not know" not in said["own"]
