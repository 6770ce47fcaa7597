from svoo.mini.vocabulary import (
    BACKGROUNDS,
    COLOURS,
    DIRECTIONS,
    OTHER_MOTIONS,
    OTHER_WORDINGS,
    SHAPES,
    example_prompt,
    grammar,
    vocabulary,
)


def test_the_words_of_the_grammar_are_known() -> None:
    words = vocabulary()
    assert words == sorted(set(words))
    assert len(words) == 53
    for text in (example_prompt(), *COLOURS, *SHAPES, *DIRECTIONS, *BACKGROUNDS):
        assert set(text.split()) <= set(words)
    assert set(OTHER_WORDINGS) == set(OTHER_MOTIONS)


def test_the_grammar_names_all_that_can_be_asked_for() -> None:
    for word in (*COLOURS, *SHAPES, *DIRECTIONS, *BACKGROUNDS):
        assert word in grammar()
