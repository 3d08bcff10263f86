"""The generated world of pictures: what is drawn, detected, asked and written."""

import json
from collections import Counter

import numpy as np
import pytest
from conftest import ROOT
from PIL import Image
from shell import assert_refused, bash

from fairseq_ext.errors import UsageError
from fairseq_ext.vqa.answers import normalise_answer, score_answers
from fairseq_ext.vqa.world import annotators, detectors, generate, question_kinds, rare_part
from fairseq_ext.vqa.world.detectors import COLOUR, DETECTORS, PLACE, SHAPE, SIZE
from fairseq_ext.vqa.world.scenes import (
    APART,
    COLOURS,
    RADII,
    RARE,
    SHAPES,
    SIDE,
    THINGS,
    VISIBLE,
    Thing,
    fill_outline,
    sample_scene,
)

PICTURES = 24


def rng(*seed):
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def scenes():
    return [sample_scene(rng(1, number)) for number in range(60)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    out = tmp_path_factory.mktemp("world") / "made"
    generate.main([str(out), "--pictures", str(PICTURES), "--seed", "3"])
    return out


def read(world, name, part):
    (key,) = {"questions", "annotations"} & {name.rpartition("_")[2].partition(".")[0]}
    return json.loads((world / name.format(part)).read_text("utf-8"))[key]


def test_what_is_drawn_is_what_is_there(scenes):
    """Each thing is visible at VISIBLE of its pixels or more, in a shade of its colour."""
    for scene in scenes:
        assert THINGS[0] <= len(scene.things) < THINGS[1]
        assert scene.picture.size == (SIDE, SIDE) and scene.visible.min() >= VISIBLE
        pixels = np.asarray(scene.picture, float)
        for number, thing in enumerate(scene.things, 1):
            at = scene.shown == number
            assert at.sum() == pytest.approx(
                scene.visible[number - 1] * fill_outline(thing).sum(), abs=0.5
            )
            assert np.abs(pixels[at].mean(0) - COLOURS[thing.colour]).max() < 45
            low, high = RADII[thing.size]
            assert low <= thing.radius <= high
            assert all(
                np.hypot(thing.x - t.x, thing.y - t.y) >= APART for t in scene.things[: number - 1]
            )


def test_later_things_hide_earlier_ones(scenes):
    hidden = [scene for scene in scenes if scene.visible.min() < 1]
    assert len(hidden) > 10
    for scene in hidden:
        twin = np.zeros((SIDE, SIDE), int)
        for number, thing in enumerate(scene.things, 1):
            twin[fill_outline(thing)] = number
        assert (twin == scene.shown).all()


def test_rare_kinds_are_rare(scenes):
    things = [thing for scene in scenes for thing in scene.things]
    for kind in ("shape", "colour"):
        share = np.mean([getattr(thing, kind) in RARE for thing in things])
        assert 0.04 < share < 0.17
    assert {*SHAPES, *COLOURS} > RARE and len(RARE) == 6


def scene_of(shape, colour, radius=22.0):
    """A scene with one thing in its middle."""
    thing = Thing(shape, colour, "large", 60.0, 70.0, radius)
    scene = sample_scene(rng(0))
    inside = fill_outline(thing)
    picture = np.full((SIDE, SIDE, 3), 220, np.uint8)
    picture[inside] = COLOURS[colour]
    shown = inside.astype(np.uint8)
    return scene._replace(
        things=[thing], picture=Image.fromarray(picture), shown=shown, visible=np.ones(1)
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("colour", COLOURS)
def test_properties_are_measured(shape, colour):
    scene = scene_of(shape, colour)
    box = detectors.surround(scene.shown > 0, 1)
    assert list(SHAPES)[detectors.measure_shape(scene, box).argmax()] == shape
    assert list(COLOURS)[detectors.measure_colour(scene, box).argmax()] == colour
    assert box.half == pytest.approx(22, abs=4) and detectors.measure_size(box).argmax() >= 2


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_sees_one_property_well(scenes, name):
    """A property can be told by the detector that sees it, and not by others."""
    detector, apart, right = DETECTORS[name], [], {"shape": [], "colour": []}
    for number, scene in enumerate(scenes):
        boxes = detectors.find_boxes(scene, detector, rng(2, number))
        features = detectors.describe_boxes(scene, boxes, detector, rng(3, number))
        assert features.shape == (len(boxes), detectors.WIDTH) and features.dtype == np.float16
        for box, row in zip(boxes, features.astype(float), strict=True):
            exact = np.concatenate(
                [
                    detectors.encode_place(np.array([box.x, box.y])),
                    detectors.measure_shape(scene, box),
                    detectors.measure_colour(scene, box),
                    detectors.measure_size(box),
                ]
            )
            apart.append(row - exact)
            for kind, part, names in (("shape", SHAPE, SHAPES), ("colour", COLOUR, COLOURS)):
                if box.thing:
                    told = list(names)[row[part].argmax()]
                    right[kind].append(told == getattr(scene.things[box.thing - 1], kind))
    deviation = np.std(apart, 0)
    for part in (SHAPE, COLOUR, SIZE):
        if part == detector.sees or detector.noise:
            expected = detectors.NOISE if part == detector.sees else detector.noise
            assert deviation[part] == pytest.approx(expected, rel=0.15)
        else:
            assert not features[:, part].any()
    assert deviation[PLACE].max() < 0.5
    for kind, shares in right.items():
        assert np.mean(shares) > 0.85 if kind == name else np.mean(shares) < 0.75


def test_places_are_alike_when_they_are_near():
    """The product of two places is the sum of the cosines of their distances."""
    one, other = np.array([20.0, 90.0]), np.array([37.0, 64.0])
    product = detectors.encode_place(one) @ detectors.encode_place(other)
    waves = [
        np.cos(np.pi * 2.0**wave * (a - b) / SIDE)
        for a, b in zip(one, other, strict=True)
        for wave in range(detectors.WAVES)
    ]
    assert product == pytest.approx(sum(waves))
    assert detectors.encode_place(one) @ detectors.encode_place(one) == pytest.approx(6)


def test_large_things_get_more_boxes_and_small_ones_are_missed(scenes):
    counts, things = Counter(), Counter()
    missed = Counter()
    for number, scene in enumerate(scenes):
        boxes = detectors.find_boxes(scene, DETECTORS["colour"], rng(4, number))
        assert detectors.FEWEST <= len(boxes) <= detectors.MOST
        per_thing = Counter(box.thing for box in boxes)
        for place, thing in enumerate(scene.things, 1):
            things[thing.size] += 1
            counts[thing.size] += per_thing[place]
            missed[thing.size] += per_thing[place] == 0
    small, large = (counts[size] / things[size] for size in ("small", "large"))
    assert large > 3 * small and missed["small"] / things["small"] > 0.05


def twin_answer(text, things):
    """The answer to a question, from its words."""
    words = text.rstrip("?").replace("crosses", "cross").split()

    def matching(part):
        kinds = {*RADII, *COLOURS, *SHAPES}
        wanted = {w if w in kinds else w.removesuffix("s") for w in part} & kinds
        return [t for t in things if wanted <= {t.shape, t.colour, t.size}]

    half = {"left": lambda t: t.x < 64, "right": lambda t: t.x > 64}
    half |= {"top": lambda t: t.y < 64, "bottom": lambda t: t.y > 64}
    if words[:2] == ["How", "many"]:
        return str(len(matching(words)))
    if words[:3] == ["Are", "there", "more"]:
        cut = words.index("than")
        return "yes" if len(matching(words[:cut])) > len(matching(words[cut:])) else "no"
    if words[:2] == ["Is", "there"]:
        return "yes" if matching(words) else "no"
    chosen = matching(words)
    if words[0] == "What":
        if words[-1] in half:
            chosen = [t for t in chosen if half[words[-1]](t)]
        (thing,) = chosen
        return thing.colour
    (thing,) = chosen
    return "yes" if half[words[-1]](thing) else "no"


def test_answers_are_true(scenes):
    said = Counter()
    for number, scene in enumerate(scenes):
        for place, kind in enumerate(question_kinds.KINDS):
            asked = question_kinds.sample_question(scene.things, kind, rng(5, number, place))
            assert asked.answer == twin_answer(asked.text, scene.things), asked
            assert asked.rare == any(k in f"{asked.text} {asked.answer}" for k in RARE)
            said[asked.kind, asked.answer] += 1
    assert {kind for kind, _ in said} == {*question_kinds.KINDS}
    for kind in ("existence", "comparison"):  # neither can be guessed
        share = said[kind, "yes"] / (said[kind, "yes"] + said[kind, "no"])
        assert 0.3 < share < 0.7
    assert {answer for kind, answer in said if kind == "colour"} >= {"red", "blue", "purple"}


def test_annotators_err_now_and_then():
    asked = question_kinds.Question("How many stars are there?", "2", "count", True)
    answers = [a for n in range(400) for a in annotators.annotate(asked, rng(6, n))]
    shares = {a: n / len(answers) for a, n in Counter(map(normalise_answer, answers)).items()}
    assert shares.keys() == {"1", "2", "3"}
    assert 1 - shares["2"] == pytest.approx(annotators.ERRORS, abs=0.02)
    assert answers.count("Two") / len(answers) == pytest.approx(annotators.VARIANTS, abs=0.02)
    best = [max(score_answers(annotators.annotate(asked, rng(7, n))).values()) for n in range(50)]
    assert min(best) == 1  # most annotators are right


@pytest.mark.parametrize("answer", [a for each in question_kinds.ANSWERS.values() for a in each])
def test_variants_are_undone_by_normalising(answer):
    varied = annotators.vary(answer)
    assert varied != answer and normalise_answer(varied) == answer


def test_the_files_have_the_official_form(world):
    pictures = []
    for part in ("train2014", "val2014", "test2015"):
        asked = read(world, annotators.QUESTIONS, part)
        assert {*asked[0]} == {"question_id", "image_id", "question"}
        pictures += {row["image_id"] for row in asked}
        if part == "test2015":
            assert not (world / annotators.ANNOTATIONS.format(part)).exists()
            continue
        known = read(world, annotators.ANNOTATIONS, part)
        assert [row["question_id"] for row in known] == [row["question_id"] for row in asked]
        for row in known:
            assert [a["answer_id"] for a in row["answers"]] == list(range(1, 11))
            assert row["answer_type"] in question_kinds.ANSWERS
            given = Counter(a["answer"] for a in row["answers"])
            assert given[row["multiple_choice_answer"]] == max(given.values())
    assert sorted(pictures) == list(range(1, PICTURES + 1))
    for name in DETECTORS:
        features = {p.stem: np.load(p) for p in (world / name).glob("*.npy")}
        assert {int(stem) for stem in features} == {*pictures}
        assert {each.shape[1] for each in features.values()} == {detectors.WIDTH}
    with Image.open(world / "contact_sheet.png") as sheet:
        assert sheet.width > 4 * 2 * SIDE and sheet.height > 6 * 2 * SIDE


def test_a_seed_makes_the_same_world(world, tmp_path):
    for seed in ("3", "4"):
        generate.main([str(tmp_path / seed), "--pictures", str(PICTURES), "--seed", seed])
    files = [path.relative_to(world) for path in world.rglob("*") if path.is_file()]
    assert len(files) == 6 + 3 * PICTURES
    for name in files:
        assert (tmp_path / "3" / name).read_bytes() == (world / name).read_bytes()
    one, other = (
        (tmp_path / s / annotators.QUESTIONS.format("train2014")).read_text() for s in "34"
    )
    assert one != other


def test_a_folder_with_something_in_it_is_kept(tmp_path):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(UsageError, match=f"^{tmp_path} is there already; delete it"):
        generate.main([str(tmp_path), "--pictures", "3"])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_kinds_of_questions_have_their_shares():
    assert {*generate.SHARES} == {*question_kinds.KINDS}
    assert sum(generate.SHARES.values()) == pytest.approx(1)
    asked = [q.kind for n in range(150) for q in generate.sample_picture(rng(8, n)).shot[2]]
    assert len(asked) == 150 * generate.ASKED
    assert asked.count("colour") / len(asked) == pytest.approx(0.35, abs=0.1)


def test_parts_have_their_shares():
    assert {part: len(ids) for part, ids in generate.divide(4000).items()} == {
        "train2014": 3000,
        "val2014": 800,
        "test2015": 200,
    }
    assert [len(ids) for ids in generate.divide(3).values()] == [1, 1, 1]


def test_the_rare_part(tmp_path):
    rows = [{"question_type": kind} for kind in ("count", "rare count", "rare spatial")]
    (tmp_path / "valid.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in ("valid.shape.npy", "valid.shape.pictures.npy", "train.shape.npy"):
        (tmp_path / name).write_text(name)
    for _ in range(2):
        rare_part.main([str(tmp_path)])
        lines = (tmp_path / "rare.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == rows[1:]
        links = {p.name: p.read_text() for p in tmp_path.glob("rare.*.npy")}
        assert links == {
            "rare.shape.npy": "valid.shape.npy",
            "rare.shape.pictures.npy": "valid.shape.pictures.npy",
        }
    (tmp_path / "valid.jsonl").write_text(json.dumps(rows[0]) + "\n")
    with pytest.raises(UsageError, match="no question about rare kinds; generate more"):
        rare_part.main([str(tmp_path)])


@pytest.mark.recipe
@pytest.mark.slow
def test_the_recipe(tmp_path):
    command = [
        ROOT / "scripts/vqa_world.sh",
        "--data",
        tmp_path / "data",
        "--out",
        tmp_path / "out",
    ]
    sizes = ["--pictures", 200, "--updates", 3]
    done = bash(*command, *sizes, "--seeds", 2, "--variants", "concat una hna")
    assert done.returncode == 0, done.stderr
    generate.generate(tmp_path / "world", 200, seed=2)
    for file in (tmp_path / "world").glob("*.json"):
        assert file.read_bytes() == (tmp_path / "data.generated" / file.name).read_bytes()
    table = (tmp_path / "out" / "table.txt").read_text()
    for name in ("concat", "una", "hna"):
        assert f"\n{name} " in f"\n{table}"
    assert "rare.accuracy against concat: paired t-test over n = 2" in table
    against = (tmp_path / "out" / "table-una.txt").read_text()
    assert "analysis.views.explained_away" in against and "concat" not in against
    assert (tmp_path / "out" / "weights" / "weights_u.png").stat().st_size > 1000
    other = bash(*command, "--pictures", 300)
    assert_refused(other, "--pictures is 300, and ", "data.generated has 200: give that number")
    other = bash(*command, *sizes, "--world-seed", 1)
    assert_refused(other, "--world-seed is 1, and ", "data.generated has 2: give that number")
    (tmp_path / "data.generated").rename(tmp_path / "elsewhere")
    other = bash(*command, *sizes, "--world-seed", 1)
    assert_refused(other, "--world-seed is 1, and ", "data has 2: give that number")
    (tmp_path / "elsewhere").rename(tmp_path / "data.generated")
    before = (tmp_path / "out" / "hna" / "seed-1" / "checkpoint_last.pt").stat().st_mtime_ns
    again = bash(*command, *sizes, "--seeds", 1, "--variants", "hna")
    assert again.returncode == 0 and "1 of 1 runs" in again.stdout, again.stderr
    after = (tmp_path / "out" / "hna" / "seed-1" / "checkpoint_last.pt").stat().st_mtime_ns
    assert before == after


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--variants", "concat bert"], ["'bert'", "pythia, concat, una, dna, hna"]),
        (["--pictures", "0"], ["--pictures is '0'"]),
        (["--fast"], ["'--fast'", "--help"]),
    ],
)
def test_what_the_recipe_refuses(flags, said):
    assert_refused(bash(ROOT / "scripts/vqa_world.sh", *flags), *said)
