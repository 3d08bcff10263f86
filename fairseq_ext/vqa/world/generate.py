"""Generate a world to ask questions about, in the format of VQA-v2.

Nothing of it is real. Pictures show 2 to 6 flat things on grey: shapes, colours and sizes at
random places, partly hidden by each other. A tenth of the shapes and of the colours is of rare
kinds.

Three detectors stand in for the three sets of boxes of the paper (Ding et al. 2020, Section 6.1).
Each finds 10 to 40 boxes: it misses some things, above all small and hidden ones, finds large ones
several times, and raises false alarms. It measures in each box how much the visible outline, whose
pixels it is told, is like each shape; how much the pixels in the middle are like each colour; the
size; and the place, vaguely. Each sees one property well: shape, colour, or size. The first one,
whose view is the primary one, sees the others dimly, with five times the noise; the other two do
not see them, and their features are 0. So a question about a red circle needs two detectors for a
sure answer, and one about a large red circle the third. All features share one layout.

Two questions are asked of each picture, about existence, count, colour, comparison or side
(spatial). Ten annotators answer each of them; 8 % of their answers are wrong, and 10 % in another
form, such as "Two" for "2".

OUT gets questions and annotations of train2014 and val2014 and questions of test2015, with the
names and the format of the official files, OUT/DETECTOR/IMAGE_ID.npy ([boxes, features], float16)
and contact_sheet.png. The question_type of what is asked about rare kinds begins with "rare". The
same seed and sizes make the same world.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from fairseq_ext.files import check_writable, new_folder
from fairseq_ext.prepare.step import number_from, step_parser
from fairseq_ext.vqa.world import annotators
from fairseq_ext.vqa.world.contact_sheet import Shot, draw_sheet
from fairseq_ext.vqa.world.detectors import DETECTORS, describe_boxes, find_boxes
from fairseq_ext.vqa.world.question_kinds import Question, sample_question
from fairseq_ext.vqa.world.scenes import sample_scene

PARTS = {"train2014": 0.75, "val2014": 0.2, "test2015": 0.05}
"""Shares of the pictures."""
ANNOTATED = ("train2014", "val2014")
ASKED = 2  # questions of a picture
SHARES = {"existence": 0.2, "count": 0.15, "colour": 0.35, "comparison": 0.1, "spatial": 0.2}
"""Shares of the kinds of questions."""
SHEET = 6  # pictures of the contact sheet
BYTES = 15_000  # of the files of a picture, at most


class Pictured(NamedTuple):
    """A picture's shot, and the features [boxes, C] that each detector has of it."""

    shot: Shot
    features: list[np.ndarray]


def sample_picture(rng: np.random.Generator) -> Pictured:
    """Return a picture with its boxes and questions."""
    scene = sample_scene(rng)
    boxes = [find_boxes(scene, detector, rng) for detector in DETECTORS.values()]
    both = zip(boxes, DETECTORS.values(), strict=True)
    features = [describe_boxes(scene, own, detector, rng) for own, detector in both]
    kinds = rng.choice(list(SHARES), ASKED, p=list(SHARES.values()))
    questions = [sample_question(scene.things, str(kind), rng) for kind in kinds]
    return Pictured((scene, boxes, questions), features)


def divide(pictures: int) -> dict[str, range]:
    """Return the ids of the pictures of each part; they count from 1."""
    counts = [max(1, round(share * pictures)) for share in PARTS.values()]
    counts[0] = pictures - sum(counts[1:])
    starts = np.cumsum([1, *counts])
    return {
        part: range(int(start), int(start) + count)
        for part, start, count in zip(PARTS, starts, counts, strict=False)
    }


def generate(out: Path, pictures: int, seed: int) -> dict[str, int]:
    """Write a world; return the number of questions of each part.

    Args:
        out: folder to make.
        pictures: at least 3, one for each part.
        seed: of everything.
    """
    with new_folder(out) as folder, tqdm(total=pictures, desc="drawing", unit=" pictures") as bar:
        for name in DETECTORS:
            (folder / name).mkdir()
        return {
            part: _write_part(folder, part, ids, seed, bar)
            for part, ids in divide(pictures).items()
        }


def _write_part(folder: Path, part: str, ids: range, seed: int, bar: tqdm) -> int:
    """Write the files of a part, the first one with a contact sheet; return its questions."""
    asked: list[tuple[int, int, Question]] = []
    shots: list[Shot] = []
    for number, (shot, features) in _sample(ids, seed):
        for name, rows in zip(DETECTORS, features, strict=True):
            np.save(folder / name / f"{number}.npy", rows)
        asked += number_questions(number, shot[2])
        shots += [shot] if len(shots) < SHEET else []
        bar.update()
    annotators.write_questions(folder, part, asked)
    if part in ANNOTATED:
        rng = np.random.default_rng([seed, ids.start, 1])
        annotators.write_annotations(folder, part, asked, rng)
    if ids.start == 1:
        draw_sheet(shots).save(folder / "contact_sheet.png")
    return len(asked)


def _sample(ids: range, seed: int) -> Iterator[tuple[int, Pictured]]:
    """Yield pictures with their ids; each depends on the seed and its id alone."""
    for number in ids:
        yield number, sample_picture(np.random.default_rng([seed, number]))


def number_questions(
    picture: int, questions: Sequence[Question]
) -> list[tuple[int, int, Question]]:
    """Return questions with their ids, made of the picture's id as those of VQA-v2 are."""
    return [(1000 * picture + place, picture, each) for place, each in enumerate(questions)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a world, and print how many questions it has."""
    parser = step_parser("generate", __doc__, "fairseq_ext.vqa.world")
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="folder to make")
    add("--pictures", type=number_from(3), default=10_000, metavar="N", help="default: 10000")
    add("--seed", type=number_from(0), default=1, metavar="N", help="default: 1")
    args = parser.parse_args(arguments)
    check_writable(args.out.parent, args.pictures * BYTES)
    counts = generate(args.out, args.pictures, args.seed)
    print(", ".join(f"{part}: {count:,} questions" for part, count in counts.items()))


if __name__ == "__main__":
    main()
