"""A contact sheet: pictures of the world with the boxes of each detector, and their questions."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from fairseq_ext.vqa.world.detectors import DETECTORS, Box
from fairseq_ext.vqa.world.question_kinds import Question
from fairseq_ext.vqa.world.scenes import SIDE, Scene

ZOOM = 2
EDGE = 10
LINE = 15  # height of a line of text
BOX_COLOURS = ("#0072B2", "#D55E00", "#009E73")  # of the detectors
PICTURES = 4  # of a row

Shot = tuple[Scene, Sequence[Sequence[Box]], Sequence[Question]]
"""A scene, the boxes of each detector, and questions."""


def draw_sheet(shots: Sequence[Shot]) -> Image.Image:
    """Draw a row for each shot: its picture, the same with each detector's boxes, its questions."""
    side = ZOOM * SIDE
    height = max(side, max(len(questions) for _, _, questions in shots) * 2 * LINE) + EDGE
    width = PICTURES * (side + EDGE) + 330
    sheet = Image.new("RGB", (width + EDGE, EDGE + 2 * LINE + len(shots) * height), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    titles = ["picture", *(f"boxes of the {name} detector" for name in DETECTORS), "questions"]
    for place, title in enumerate(titles):
        draw.text((EDGE + place * (side + EDGE), EDGE), title, "black", font)
    for row, (scene, boxes, questions) in enumerate(shots):
        top = EDGE + 2 * LINE + row * height
        for place, panel in enumerate([[], *boxes]):
            picture = draw_boxes(scene, panel, BOX_COLOURS[place - 1])
            sheet.paste(picture, (EDGE + place * (side + EDGE), top))
        for place, question in enumerate(questions):
            text = f"{question.text}\n    {question.answer}{', rare' if question.rare else ''}"
            left = EDGE + PICTURES * (side + EDGE)
            draw.multiline_text((left, top + place * 2.2 * LINE), text, "black", font)
    return sheet


def draw_boxes(scene: Scene, boxes: Sequence[Box], colour: str) -> Image.Image:
    """Draw a picture with boxes, enlarged; false alarms have thin grey lines."""
    picture = scene.picture.resize((ZOOM * SIDE, ZOOM * SIDE), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(picture)
    for box in boxes:
        corners = [ZOOM * edge for edge in box.corners()]
        draw.rectangle(
            corners, outline=colour if box.thing else "grey", width=2 if box.thing else 1
        )
    return picture
