"""Records of what was measured: whole, and pages, verdicts and pictures that follow from them."""

import copy
import json
import math
import statistics
import sys

import pytest
from conftest import ROOT
from readability import find_long

sys.path.append(str(ROOT / "docs"))
import advice  # noqa: E402
import draw_heads  # noqa: E402
import draw_results  # noqa: E402
import print_results  # noqa: E402
import records  # noqa: E402

RECORDS = records.read_records()
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
WORDS = 12_000


def names(value) -> str:
    return value["name"] if isinstance(value, dict) else value.name


def make_record(**changes) -> dict:
    """Two sides with three seeds, the first one ahead beyond doubt."""
    record = {
        "name": "made",
        "title": "Made",
        "question": "Is a better than b?",
        "paper": "none",
        "date": "2026-01-01",
        "page": "made",
        "order": 1,
        "meaning": "Nothing.",
        "change": "Everything.",
        "columns": ["side", "repetition", "score"],
        "runs": [[s, f"seed {n}", v + n / 10] for s, v in (("a", 5), ("b", 2)) for n in (1, 2, 3)],
        "measures": {"score": {"title": "score", "digits": 2, "better": "higher"}},
        "comparisons": [{"baseline": "b"}],
        "claims": [
            {
                "claim": "A is better",
                "paper": "ours",
                "place": "",
                "verdict": "holds",
                "sentence": "It is.",
                "tests": [{"side": "a", "baseline": "b", "measure": "score"}],
            }
        ],
    }
    record["runs"][0][2] += 0.5  # differences differ
    return {**record, **changes}


def judge(record: dict) -> str:
    return records.judge(record, record["claims"][0])


@pytest.mark.parametrize("record", RECORDS, ids=names)
def test_records_have_their_fields_and_verdicts_by_the_rule(record):
    assert not records.find_faults(record)
    page = ROOT / "docs" / "results" / f"{record['page']}.md"
    assert page in PAGES
    if name := record.get("protocol"):
        assert (records.FOLDER / "protocols" / f"{name}.toml").is_file()
    assert {claim["paper"] for claim in record.get("claims", ())} <= print_results.PAPERS.keys()


def test_a_sound_record_has_no_faults():
    assert not records.find_faults(make_record())


@pytest.mark.parametrize("field", records.REQUIRED)
def test_a_record_without_a_field_is_refused(field):
    record = make_record()
    del record[field]
    assert records.find_faults(record) == [f"it lacks {field}"]


def test_an_unknown_field_and_a_record_without_numbers_are_refused():
    record = make_record(colour="red")
    assert records.find_faults(record) == ["colour is no field"]
    record = make_record(runs=[], claims=[], comparisons=[])
    assert "it has no numbers" in records.find_faults(record)[0]


def test_a_verdict_that_does_not_follow_is_refused():
    record = make_record()
    record["claims"][0]["verdict"] = "not shown"
    assert "by the rule it is holds" in records.find_faults(record)[0]


def test_a_reported_difference_that_does_not_follow_from_its_rows_is_refused():
    reported = {"side": "a", "baseline": "b", "measure": "score", "difference": 9.0, "n": 3}
    faults = records.find_faults(make_record(reported=[{**reported, "p": 0.01}]))
    assert faults == ["a - b by score is 9.0, and by its rows 3.1667"]


def test_a_claim_has_at_most_twelve_words():
    record = make_record()
    record["claims"][0]["claim"] = "word " * 13
    assert "more than 12 words" in records.find_faults(record)[0]


def test_verdicts_by_the_rule():
    record = make_record()
    test = record["claims"][0]["tests"][0]
    assert judge(record) == "holds"
    record["claims"][0]["tests"] = [{**test, "direction": "lower"}]
    assert judge(record) == "opposite"
    record["claims"][0] |= {"tests": [test], "void": "no verdict by the protocol"}
    assert judge(record) == "open"
    noisy = [["a", f"seed {n}", v] for n, v in ((1, 9.0), (2, 1.0), (3, 5.0))]
    assert judge(make_record(runs=[*noisy, *make_record()["runs"][3:]])) == "not shown"
    two = [run for run in make_record()["runs"] if run[1] != "seed 3"]
    assert judge(make_record(runs=two)) == "open"  # however sure the test of two seeds is


def test_a_claim_of_several_parts_says_where_it_holds():
    record = make_record()
    record["columns"] = ["group", *record["columns"]]
    noisy = [["y", "a", f"seed {n}", v] for n, v in ((1, 9.0), (2, 1.0), (3, 2.0))]
    level = [["y", "b", f"seed {n}", 2.0] for n in (1, 2, 3)]
    record["runs"] = [*(["x", *run] for run in record["runs"]), *noisy, *level]
    claim = record["claims"][0]
    claim["tests"] = [{**claim["tests"][0], "group": group} for group in "xy"]
    assert judge(record) == "partly"
    claim["verdict"] = "partly"
    assert "does not say where" in records.find_faults(record)[0]
    claim["part"] = "on x"
    assert not records.find_faults(record)


def test_every_test_of_a_record_has_to_agree():
    """A bootstrap that was reported and a t-test that is computed, as protocols name both."""
    reported = {"side": "a", "baseline": "b", "measure": "score", "difference": 3.17, "n": 3}
    unsure = {**reported, "low": -0.1, "high": 6.0, "p": 0.06, "test": "bootstrap"}
    assert judge(make_record(reported=[unsure])) == "not shown"
    assert judge(make_record(reported=[{**unsure, "low": 0.1, "p": 0.04}])) == "holds"


def test_the_correction_counts_comparisons_that_were_not_run():
    record = make_record()
    (key,) = records.compare(record)
    (alone,) = records.compare(record)[key]
    record["comparisons"] = [{"baseline": "b", "of": 5}]
    (corrected,) = records.compare(record)[key]
    assert math.isclose(corrected.p, 5 * alone.p)
    record["claims"][0]["verdict"] = "not shown"
    record["comparisons"] = [{"baseline": "b", "of": math.ceil(0.05 / alone.p)}]
    assert not records.find_faults(record)


def test_runs_whose_order_is_not_known_get_the_largest_p():
    record, shuffled = make_record(), copy.deepcopy(make_record())
    for run in shuffled["runs"][:2]:
        run[1] = "seed 1 or 2"
    ((known,),), ((unknown,),) = (records.compare(r).values() for r in (record, shuffled))
    assert unknown.p >= known.p
    assert math.isclose(unknown.difference, known.difference)


def test_means_of_a_record_are_those_of_its_runs():
    record = next(record for record in RECORDS if record["name"] == "guidance_tuned")
    n, mean, error = records.summarise(record, "loss")["", "plain"]
    values = [run[2] for run in record["runs"] if run[0] == "plain"]
    assert (n, mean) == (3, statistics.mean(values))
    assert math.isclose(error, statistics.stdev(values) / math.sqrt(3))


def test_pages_are_as_they_are_printed():
    differ = [path.name for path, old, new in print_results.print_targets() if old != new]
    assert not differ, "run `python docs/print_results.py --write`"


@pytest.mark.parametrize(("paper", "page"), print_results.HOMES.items())
def test_every_claim_of_a_paper_is_on_its_page(paper, page):
    text = (ROOT / "docs" / "results" / f"{page}.md").read_text("utf-8").replace("\n  ", " ")
    claims = [c["claim"] for r in RECORDS for c in r.get("claims", ()) if c["paper"] == paper]
    assert claims and not [claim for claim in claims if claim not in text]


def test_claims_on_other_pages_have_their_verdict_and_place():
    here = make_record(page="dna")
    there = make_record(page="gpu", title="A b")
    for record in (here, there):
        record["claims"][0]["paper"] = "ding"
    text = print_results.print_elsewhere([here, there], "dna")
    assert text.split("\n\n")[1] == "- A is better: **holds** ([A b](gpu.md#a-b)).\n"
    assert not print_results.print_elsewhere([here], "dna")


def test_times_of_what_to_try_are_those_of_cells():
    table = {
        "columns": ["", "plain", "own"],
        "rows": [["small", "0.80 [0.7, 0.9]", "1.00"], ["large", "2", "2.09 [2, 3]"]],
    }
    record = make_record(tables=[table], hardware="an H100", page="gpu")
    cells = [["large", "own"], ["small", "own", "small", "plain"]]
    assert advice.print_time(record, cells) == "1.25–2.09 ([H100](results/gpu.md#made))"
    record["hardware"] = "two cores"
    assert advice.print_time(record, cells[:1]) == "2.09 ([CPU](results/gpu.md#made))"
    with pytest.raises(ValueError, match="not enough"):
        advice.print_time(record, [["small", "other"]])


def test_verdicts_with_numbers_have_their_pictures():
    listed = [*draw_results.list_pictures()]
    old = [path.name for path, panels, _ in listed if not draw_results.is_current(path, panels)]
    assert not old, "run `python docs/draw_results.py --write`"
    assert {*draw_results.PICTURES.iterdir()} == {path for path, _, _ in listed}
    assert max(path.stat().st_size for path, _, _ in listed) <= 40_000
    shown = "".join(page.read_text("utf-8") for page in PAGES)
    assert not [path.name for path, _, _ in listed if f"results/{path.name}" not in shown]


def test_a_picture_of_other_numbers_is_noticed(tmp_path):
    record = make_record()
    panels = draw_results.list_panels(record)
    draw_results.save(tmp_path / "made.png", panels, draw_results.draw_record)
    assert draw_results.is_current(tmp_path / "made.png", panels)
    record["runs"][0][2] += 0.01
    assert not draw_results.is_current(tmp_path / "made.png", draw_results.list_panels(record))
    assert not draw_results.is_current(tmp_path / "other.png", panels)


CHOSEN = json.loads(draw_heads.MAPS.read_text("utf-8"))


def test_the_picture_of_two_heads_and_its_captions_are_of_its_maps():
    targets = [*draw_heads.print_targets(CHOSEN)]
    assert ROOT / "README.md" in [path for path, _, _ in targets]
    differ = [path.name for path, old, new in targets if old != new]
    assert not differ, "run `python docs/draw_heads.py --write`"
    assert draw_results.has_digest(draw_heads.PICTURE, draw_results.hash_value(CHOSEN))


def test_two_heads_show_what_is_said_of_them():
    """Counted here by loops: a key of softmax is explained away, and DNA's bound is kept."""
    size, text = len(CHOSEN["tokens"]), draw_heads.describe(CHOSEN, "x/").replace("\n", " ")
    received = [
        [sum(row[key] for row in each["weights"]) for key in range(size)] for each in CHOSEN["maps"]
    ]
    least, most = min(received[0]), max(received[0])
    for value in (least, most):
        token = CHOSEN["tokens"][received[0].index(value)]
        assert f'"{token}" {value:.2g}' in text
    assert least < 0.1 / size and min(received[1]) >= 1 / size
    assert f"1/{size} = {1 / size:.2g}, here {min(received[1]):.2g}." in text
    assert CHOSEN["maps"][0]["below"] > 0 == CHOSEN["maps"][1]["below"]


def test_a_caption_of_other_maps_is_noticed():
    other = copy.deepcopy(CHOSEN)
    other["maps"][0]["weights"][0][0] += 9
    assert all(old != new for _, old, new in draw_heads.print_targets(other))
    assert not draw_results.has_digest(draw_heads.PICTURE, draw_results.hash_value(other))


def test_results_are_short():
    assert sum(len(page.read_text("utf-8").split()) for page in PAGES) <= WORDS


def test_the_page_of_what_to_try_is_short():
    """Its rows are compared with their records where printed pages are."""
    text = (ROOT / "docs" / "what_to_try.md").read_text("utf-8")
    assert len(text.replace("|", " ").split()) <= 500 and not list(find_long(text))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_results_can_be_read(page):
    assert not list(find_long(page.read_text("utf-8")))
