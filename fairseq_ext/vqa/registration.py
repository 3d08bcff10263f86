"""Registration of this room with fairseq, `fairseq-ext predict` and the verbs of analysis."""

from fairseq_ext.analysis.checkpoint_kinds import OPENERS
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.tools.predict import SPLIT_PREDICTORS
from fairseq_ext.vqa import criterion, models, task  # noqa: F401
from fairseq_ext.vqa.multi_view import SITE
from fairseq_ext.vqa.picture_inspector import PictureInspector
from fairseq_ext.vqa.predict_answers import predict_lines

OPENERS["vqa"] = PictureInspector
SITES[SITE] = "multi-view attention"
SPLIT_PREDICTORS["vqa"] = predict_lines
