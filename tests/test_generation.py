"""Flags of fairseq-generate and fairseq-interactive: what they do, and those that do nothing."""

import re

import pytest
import torch
from commands import GENERATE, generate
from conftest import PLUGIN, fairseq
from fairseq import options, utils
from fairseq.data import Dictionary
from fairseq.search import DiverseBeamSearch

from fairseq_ext.commands import generation
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import read_output

LAST = "checkpoint_last.pt"
SHORT = ["--beam", 1, "--max-len-b", 3]


def test_shards_together_are_the_whole(data_bin, hybrid_run, tmp_path):
    whole = generate(data_bin, hybrid_run / LAST, *SHORT)
    for number in range(3):
        shard = ["--num-shards", 3, "--shard-id", number, "--results-path", tmp_path]
        generate(data_bin, hybrid_run / LAST, *SHORT, *shard)
    names = [f"generate-valid-shard{number}.txt" for number in range(3)]
    parts = [(tmp_path / name).read_text("utf-8") for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert sorted(part.count("\nH-") for part in parts) == [33, 33, 34]
    numbers = [int(n) for part in parts for n in re.findall(r"^H-(\d+)", part, re.M)]
    assert sorted(numbers) == list(range(100))
    (tmp_path / "whole.txt").write_text(whole, "utf-8")
    expected = read_output(tmp_path / "whole.txt")
    assert read_output(tmp_path / "generate-valid.txt")[1:] == expected[1:]
    (tmp_path / names[1]).unlink()
    with pytest.raises(UsageError, match="generate-valid.txt has no H- line for sentence"):
        read_output(tmp_path / "generate-valid.txt")


def test_more_shards_than_sentences(data_bin, hybrid_run):
    flags = ["--user-dir", PLUGIN, "--path", hybrid_run / LAST, *GENERATE]
    done = fairseq("generate", data_bin, *flags, *"--num-shards 101".split(), check=False)
    assert done.returncode == 1
    assert "error: --num-shards is 101 and valid has 100 sentences; give no more" in done.stderr


@pytest.fixture
def words():
    dictionary = Dictionary()
    for symbol in ("bahn@@", "hof", "er"):
        dictionary.add_symbol(symbol)
    return dictionary


@pytest.mark.parametrize(
    ("subwords", "translations", "text"),
    [
        ("@@ ", {}, "bahnhof Ulm"),
        (None, {"Ulm": "Neu-Ulm"}, "bahn@@ hof Neu-Ulm"),
        ("@@ ", None, "bahnhof <unk>"),
    ],
)
def test_unknown_words_are_replaced_by_the_aligned_ones(subwords, translations, text, words):
    tokens = words.encode_line("bahn@@ hof ?", add_if_not_exist=False)
    pairs, given = [(3, 0), (3, 1), (1, 2)], {"align_dict": translations, "remove_bpe": subwords}
    given |= {"hypo_tokens": tokens, "src_str": "station Ulm is here", "alignment": pairs}
    assert utils.post_process_prediction(**given, tgt_dict=words)[1] == text


def test_unknown_words_without_a_source_word_stay(words):
    tokens = words.encode_line("? ? er", add_if_not_exist=False)
    for pairs in ([], [(7, 0)], torch.empty(0)):
        given = {"hypo_tokens": tokens, "src_str": "a", "alignment": pairs, "align_dict": {}}
        text = utils.post_process_prediction(**given, tgt_dict=words)[1]
        assert text == "<unk> <unk> er"


def test_translations_of_unknown_words_are_read(tmp_path):
    path = tmp_path / "words"
    path.write_text("hund dog\nkatze cat\n")
    assert utils.load_align_dict(str(path)) == {"hund": "dog", "katze": "cat"}
    path.write_text("hund dog\nkatze\n")
    with pytest.raises(UsageError, match="words, which has a line of less than two words; give a"):
        utils.load_align_dict(str(path))


def test_a_bare_flag_names_no_file():
    assert utils.load_align_dict(generation.BARE) == {} and utils.load_align_dict(None) is None
    parser = options.get_generation_parser()
    args = options.parse_args_and_arch(parser, ["DATA", "--replace-unk"])
    assert (args.replace_unk, args.print_alignment) == (generation.BARE, "hard")


REPLACE = "--replace-unk --unkpen -99 --beam 2 --max-len-b 5".split()


def aligned(output, text):
    """The words of each translation, and those of the text that it is aligned with."""
    for number, pairs in re.findall(r"^A-(\d+)\t(.*)", output, re.M):
        words = text[int(number)].split()
        places = [int(pair.partition("-")[0]) for pair in pairs.split()]
        yield (
            re.search(rf"^H-{number}\t\S+\t(.*)", output, re.M)[1].split(),
            [words[place] for place in places],
        )


def test_generate_replaces_unknown_words(data_bin, real_lines, hybrid_run, tmp_path):
    """It needs raw text, and says so."""
    text = ["ein zzhund läuft .", "zwei zzkatzen"]
    for language in ("de", "en"):
        (tmp_path / f"valid.de-en.{language}").write_text("".join(f"{x}\n" for x in text))
        dictionary = (data_bin / f"dict.{language}.txt").read_text("utf-8")
        (tmp_path / f"dict.{language}.txt").write_text(dictionary, "utf-8")
    output = generate(tmp_path, hybrid_run / LAST, "--dataset-impl", "raw", *REPLACE)
    pairs = [*aligned(output, text)]
    assert len(pairs) == 2 and all(found == expected for found, expected in pairs)


def test_interactive_copies_words_that_it_does_not_know(data_bin, hybrid_run, tmp_path):
    text = ["ein zzhund läuft .", "zwei zzkatzen", "zzdrei", "zzvier männer"]
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in text), "utf-8")
    flags = ["--user-dir", PLUGIN, "--path", hybrid_run / LAST, *"-s de -t en --cpu".split()]
    flags += [*REPLACE, "--input", tmp_path / "text", "--buffer-size", 3, "--batch-size", 2]
    output = fairseq("interactive", data_bin, *flags).stdout
    assert re.findall(r"^S-\d\t(.*)", output, re.M) == text
    pairs = [*aligned(output, text)]
    assert len(pairs) == 4 and all(found == expected for found, expected in pairs)
    assert any(word.startswith("zz") for words, _ in pairs for word in words)


def parse(command, flags):
    parser = getattr(options, f"get_{command}_parser")()
    return options.parse_args_and_arch(parser, ["DATA", *flags.split()])


@pytest.mark.parametrize(
    ("command", "flags", "said"),
    [
        ("interactive_generation", "--prefix-size 1", "fairseq-interactive does not read --prefix"),
        ("interactive_generation", "--num-shards 2", "does not read --num-shards; leave it out"),
        ("interactive_generation", "--lm-path x.pt", "does not read --lm-path"),
        ("generation", "--valid-subset zz", "fairseq-generate does not read --valid-subset"),
        ("eval_lm", "--results-path x", "fairseq-eval-lm does not read --results-path"),
        ("validation", "--task translation --gen-subset zz", "validate does not read --gen-subset"),
        ("validation", "--task translation --max-valid-steps 2", "not read --max-valid-steps"),
        ("generation", "--replace-unk --print-alignment soft", "give --print-alignment hard"),
        ("generation", "--replace-unk --bpe characters", "words are aligned before subwords"),
        ("eval_lm", "--tokens-per-sample 8 --context-window 8", "a --tokens-per-sample above it"),
        ("eval_lm", "--context-window 8 --num-workers 2", "by one process; give 1, or no window"),
        ("eval_lm", "--context-window 8 --num-shards 2", "by one process; give 1, or no window"),
    ],
)
def test_flags_that_would_do_nothing_or_something_else(command, flags, said):
    with pytest.raises(UsageError, match=said):
        parse(command, flags)


def test_flags_whose_lack_of_effect_is_harmless(capsys):
    parse("interactive_generation", "--quiet --keep-last-epochs 3")
    said = capsys.readouterr().err
    for flag in ("--quiet", "--keep-last-epochs"):
        assert f"warning: fairseq-interactive does not read {flag}, which has no effect" in said
    parse("generation", "--quiet --prefix-size 1 --num-shards 2 --max-tokens 9 --results-path x")
    parse("eval_lm", "--num-shards 2")
    parse("validation", "--task translation --batch-size 2 --valid-subset test")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("numbers", [[9, 70, 4], [2, 0, 1], [0, 1, 2]])
def test_diverse_beams_are_those_of_the_sentence(numbers, words):
    """Whatever numbers the sentences have, and after one of them has left the batch."""

    def search(sentences):
        beams, found = DiverseBeamSearch(words, 2, 0.5), []
        generator = torch.Generator().manual_seed(1)
        rows = [0, 1, 2]
        for step in range(4):
            if step == 2:
                rows = [0, 2]
            scores = torch.randn(3, 4, len(words), generator=generator).log_softmax(-1)[rows]
            earlier = torch.randn(3, 4, 4, generator=generator)[rows][:, :, :step]
            found += beams.step(step, scores, earlier, None, torch.tensor(sentences)[rows])
        return found

    for ours, expected in zip(search(numbers), search([0, 1, 2]), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)
