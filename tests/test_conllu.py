"""CoNLL-U files."""

import gzip

import pytest
from corpora import UD, format_conllu, needs_corpora
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.data.conllu import Sentence, read
from fairseq_ext.errors import UsageError

WORKED = """\
# sent_id = email-7
1	They	they	PRON	_	_	4	nsubj:pass	4:nsubj	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	_	_	4	aux	_	_
3	n't	not	PART	_	_	4	advmod	_	_
3.1	ever	_	_	_	_	_	_	4:advmod	_
4	win	win	VERB	_	_	0	root	_	SpaceAfter=No
5	.	.	PUNCT	_	_	4	punct	_	_

1	Yes	yes	INTJ	_	_	0	root	_	_"""


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_worked(tmp_path, name):
    path = tmp_path / name
    text = WORKED.encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    words = "They do n't win .".split()
    relations = "nsubj:pass aux advmod root punct".split()
    first = Sentence(words, [3, 3, 3, -1, 3], relations, {1: (3, "don't")}, f"{path}:2", "email-7")
    assert list(read(path)) == [first, Sentence(["Yes"], [-1], ["root"], {}, f"{path}:10")]


def faulty(old: str, new: str) -> str:
    assert WORKED.count(old) == 1
    return WORKED.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (faulty("1	They	they", "1	They"), 2, "has 9 columns; CoNLL-U has 10"),
        (faulty("2	do	do", "2 do do"), 4, "has 8 columns"),
        (faulty("3	n't", "4	n't"), 5, "has the ID '4', where 3 is expected"),
        (faulty("5	.", "05	."), 8, "has the ID '05', where 5 is expected"),
        (faulty("1	Yes", "6	Yes"), 10, "has the ID '6', where 1 is expected"),
        (faulty("2-3", "3-4"), 3, "has the ID '3-4', where 2 is expected"),
        (faulty("2-3", "2-1"), 3, "has the ID '2-1', where 2 is expected"),
        (faulty("2-3", "2-6"), 3, "has the ID '2-6', and the sentence has 5 words"),
        (
            faulty("_	_	4	aux", "_	_	_	aux"),
            4,
            "has the HEAD '_'; give a word's ID, 1 to 5",
        ),
        (faulty("_	_	4	aux", "_	_	6	aux"), 4, "has the HEAD '6'"),
        (faulty("_	_	4	aux", "_	_	-1	aux"), 4, "has the HEAD '-1'"),
        (faulty("_	_	4	aux", "_	_	3.1	aux"), 4, "has the HEAD '3.1'"),
        (faulty("_	_	4	aux", "_	_	2	aux"), 4, "word 2 depends on itself"),
        (
            faulty("_	_	4	aux", "_	_	3	aux").replace(
                "4	advmod", "2	advmod"
            ),
            4,
            "depends on itself",
        ),
        (
            faulty("0	root	_	S", "1	root	_	S"),
            2,
            "begins a sentence without a root",
        ),
        (
            "\n# a\n8.1	x	_	_	_	_	_	_	_	_\n\n",
            3,
            "begins a sentence without words",
        ),
    ],
)
def test_faults(tmp_path, text, line, says):
    path = tmp_path / "a.conllu"
    path.write_text(text, newline="\n")
    with pytest.raises(UsageError) as caught:
        list(read(path))
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}") and says in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "content", [None, b"\xff\n", gzip.compress(WORKED.encode(), mtime=0)[:-12]]
)
def test_unreadable(tmp_path, content):
    path = tmp_path / "a.conllu.gz"
    if content:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.conllu\.gz"):
        list(read(path))


@given(heads=st.lists(st.integers(0, 6), min_size=1, max_size=6))
def test_trees(tmp_path_factory, heads):
    """Read if each word leads to a root, else refused."""
    path = tmp_path_factory.mktemp("trees") / "a.conllu"
    path.write_text(format_conllu(" ".join("abcdef"[: len(heads)]), " ".join(map(str, heads))))
    inside = all(head <= len(heads) for head in heads)
    reached = list(range(1, len(heads) + 1)) if inside else [1]
    for _ in heads:
        reached = [inside and head and heads[head - 1] for head in reached]
    if inside and not any(reached):
        assert next(read(path)).heads == [head - 1 for head in heads]
    else:
        with pytest.raises(UsageError):
            list(read(path))


@needs_corpora
@pytest.mark.parametrize(("path", "sentences", "words"), UD)
def test_universal_dependencies(path, sentences, words):
    found = list(read(path))
    assert (len(found), sum(len(sentence.words) for sentence in found)) == (sentences, words)


@needs_corpora
def test_as_the_library_reads():
    library = pytest.importorskip("conllu")
    with gzip.open(UD[2][0], "rt", encoding="utf-8") as file:
        for ours, theirs in zip(read(UD[2][0]), library.parse_incr(file), strict=True):
            rows = [row for row in theirs if isinstance(row["id"], int)]
            expected = [(row["form"], row["head"] - 1, row["deprel"]) for row in rows]
            assert list(zip(ours.words, ours.heads, ours.relations, strict=True)) == expected
