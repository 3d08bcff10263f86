"""Answers of visual question answering: the official normalisation and accuracy.

The rules are those of the evaluation that the VQA challenge publishes (GT-Vision-Lab/VQA, version
of 2021), with what its regular expressions really do.
"""

import re
from collections import Counter
from collections.abc import Sequence

ENOUGH = 3  # annotators who make an answer entirely right
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
COMMA = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")
PERIODS = 32  # periods that are removed at most, since the official code gives a flag as a count
ARTICLES = frozenset(("a", "an", "the"))
NUMBERS = {
    word: str(number)
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"none": "0"}

# Words that are written without their apostrophe, or without one of several.
ONE_APOSTROPHE = """
    ain't aren't can't could've couldn't didn't doesn't don't hadn't hasn't haven't he'd he's how'd
    how'll how's isn't it'd it'll ma'am mightn't might've mustn't must've needn't not've o'clock
    oughtn't shan't should've shouldn't somebody'll somebody's someone'd someone'll someone's
    something'd something'll that's there'd there're there's they'd they'll they're they've 'twas
    wasn't we've weren't what'll what're what's what've when's where'd where's where've who'd who'll
    who's who've why'll why're why's won't would've wouldn't y'all you'd you'll you're you've
"""
SEVERAL_APOSTROPHES = """
    couldn't've hadn't've he'd've it'd've mightn't've 'ow's'at she'd've shouldn't've somebody'd've
    someone'd've something'd've there'd've they'd've we'd've who'd've wouldn't've y'all'll
    y'all'd've you'd've
"""


def _contractions() -> dict[str, str]:
    """Return the correct form of each misspelt contraction."""
    table = {word.replace("'", ""): word for word in ONE_APOSTROPHE.split()}
    for word in SEVERAL_APOSTROPHES.split():
        places = [place for place, letter in enumerate(word) if letter == "'"]
        table |= {word[:place] + word[place + 1 :]: word for place in places}
    return table | {"somebody'd": "somebodyd"}  # so in the official table


CONTRACTIONS = _contractions()


def clean_answer(text: str) -> str:
    """Return an answer without line feeds, tabs, and space around it, otherwise as it is."""
    return text.replace("\n", " ").replace("\t", " ").strip()


def normalise_answer(text: str) -> str:
    """Return an answer as the official evaluation compares it.

    Punctuation goes or becomes a space, letters become lower case, words for numbers up to ten
    become digits, articles are removed and contractions get their apostrophe. The answer "a" thus
    becomes empty.
    """
    words = _replace_punctuation(clean_answer(text)).lower().split()
    words = [NUMBERS.get(word, word) for word in words]
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def _replace_punctuation(text: str) -> str:
    """Return a text without punctuation marks.

    A mark is removed if it stands beside a space somewhere, and all marks are if the text has a
    comma between digits; any other mark becomes a space. Periods before digits stay.
    """
    replaced, has_number = text, COMMA.search(text)
    for mark in PUNCTUATION:
        beside_space = f"{mark} " in text or f" {mark}" in text
        replaced = replaced.replace(mark, "" if beside_space or has_number else " ")
    return PERIOD.sub("", replaced, count=PERIODS)


def score_answers(answers: Sequence[str]) -> dict[str, float]:
    """Return the official accuracy of each answer that annotators gave.

    The accuracy of an answer is its mean over the annotators n who are left out in turn,
    (1/N) * sum_n min(1, |{m != n: answer_m is the answer}| / 3). For ten annotators it is 0.3, 0.6,
    0.9 and 1 for an answer of one, two, three and more of them. Any other answer has accuracy 0.

    Where all annotators agree, the official evaluation compares answers without normalising them:
    the key is then the answer as it was given.

    Args:
        answers: an answer for each of the N annotators, as it was given.

    Returns:
        Accuracy by answer, in the order in which the answers occur first.
    """
    cleaned = [clean_answer(answer) for answer in answers]
    if len(set(cleaned)) > 1:
        cleaned = [normalise_answer(answer) for answer in cleaned]
    annotators = len(cleaned)
    return {
        answer: _thirds(count, annotators) / (ENOUGH * annotators)
        for answer, count in Counter(cleaned).items()
    }


def _thirds(count: int, annotators: int) -> int:
    """Return three times the sum of accuracies over the annotators, a whole number."""
    without, within = min(ENOUGH, count), min(ENOUGH, count - 1)
    return (annotators - count) * without + count * within
