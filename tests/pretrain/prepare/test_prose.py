"""What is prose."""

from pretrain.prepare.sentences import count_words, is_prose


def test_prose():
    assert is_prose("Four words are here.", 4, 0.6) and not is_prose("Three words here.", 4, 0.6)
    assert not is_prose("12 34 = 56 | 78 a b", 4, 0.6)
    assert is_prose("今天天气很好", 4, 0.6) and count_words("今天天气") == 4
    assert is_prose("Это четыре слова здесь", 4, 0.6)


def test_a_heading_of_wiki_markup_is_no_prose():
    assert not is_prose("= = Life cycle of the lobster = =", 4, 0.6)
    assert is_prose("It holds that a = b = c for all of them", 4, 0.6)
