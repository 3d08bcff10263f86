r"""Draw attention maps of checkpoints, for a sentence of a split or one given as text.

Rows are the tokens that attend, columns the tokens that are attended to; in the decoder a row is
the token that is predicted. The target is the reference, or with --sentence the model's own
translation (beam 5). Text for translation must be tokenised, in the case of the training data; it
is split into subwords by DATA_BIN/bpe.codes, or raw text by DATA_BIN/sentencepiece.model. Encoders
take plain text; those of pairs, passages and questions take a line as `fairseq-ext predict` does,
with tabs ($'one\tother'). Layers and heads count from 0.

--head all draws all heads of all layers, with the first head of --layer large; all:N makes head N
large. They have one scale of colours; --own-scales gives each small map its own. Several
checkpoints stand side by side, --columns of them in a row; --initial puts before them the same
models with the random parameters of their seeds, as before training. All maps are also written
beside the picture as .json, with the negative weights that raw hybrid attention may have (pictures
begin at 0). An .html file is a page on which sites, layers, heads and tokens are chosen, beginning
with the choice made here; it needs no network.

Example:
  fairseq-ext map checkpoints/study/dna/seed-1/checkpoint_best.pt --data data-bin/multi30k.en-de \
    --sentence 'a man in an orange hat .' --layer 3 --head 1 --out map.png
  fairseq-ext map checkpoints/study/{una,dna}/seed-1/checkpoint_best.pt \
    --data data-bin/multi30k.en-de --split valid --index 7 --site cross --head all --out cross.svg
  fairseq-ext map checkpoints/{ag,plain}/checkpoint_1_100.pt \
    checkpoints/{ag,plain}/checkpoint_last.pt --initial --columns 2 --layer 0 --head 0 \
    --sentence 'welcome to the show .' --out figure1.png
  fairseq-ext map encoders/minilm/model.pt --sentence 'a smile on your face' --out maps.html
"""

import argparse
from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from fairseq_ext.analysis import arguments, sentence_maps
from fairseq_ext.analysis.heatmaps import draw_beside, draw_grids, draw_map
from fairseq_ext.analysis.inspector import ModelInspector
from fairseq_ext.analysis.loading import check_there
from fairseq_ext.analysis.recording import SITES
from fairseq_ext.analysis.sentence_maps import AXES, SentenceMaps
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import check_picture, save
from fairseq_ext.files import check_writable

PAGE = ".html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fairseq-ext map`."""
    arguments.add(parser, "checkpoints", "--data")
    arguments.add(parser, "--out", metavar="FILE", help=".png, .svg, .pdf, .html")
    arguments.add_sentence(parser, "test")
    arguments.add(parser, "--site")
    add = parser.add_argument
    add("--layer", type=arguments.number, metavar="N", help="default: the last one")
    add("--head", default="mean", metavar="N|mean|all|all:N", help="default: mean of all")
    add("--columns", type=arguments.number, metavar="N", help="default: all in one row")
    add("--own-scales", action="store_true", help="with --head all: a scale for each map")
    add("--initial", action="store_true", help="draw them also as they were before training")


def run(args: argparse.Namespace) -> None:
    """Write a picture and its numbers, or a page."""
    page = args.out.suffix.lower() == PAGE
    if page:
        check_writable(args.out.parent, 0)
    else:
        check_picture(args.out)
    arguments.check_sentence(args)
    _check_columns(args, page)
    models = [sentence_maps.read_maps(inspector, args) for inspector in open_inspectors(args)]
    begin = check_choice(models, args)
    if page:
        sentence_maps.write_maps_page(models, args.out, begin)
    else:
        sentence_maps.write_maps(models, args.out.with_suffix(".json"))
        save(draw(models, args), args.out)
    numbers = "" if page else f" and {args.out.with_suffix('.json')}"
    print(f"{args.out}{numbers}: attention of {', '.join(maps.title for maps in models)}")


def _check_columns(args: argparse.Namespace, page: bool) -> None:
    arguments.check_at_least(args, columns=1)
    if args.own_scales and (page or not args.head.startswith("all")):
        raise UsageError("--own-scales is for a picture of --head all; leave it out")
    one_model = len(args.checkpoints) == 1 and not args.initial
    if args.columns is not None and (page or args.head.startswith("all") or one_model):
        raise UsageError(
            f"--columns {args.columns} is for pictures of one head in several models; leave it out"
        )


def open_inspectors(args: argparse.Namespace) -> Iterator[ModelInspector]:
    """Yield the models, with --initial after each training's model before training."""
    check_there(args.checkpoints)
    runs = {path.parent: path for path in args.checkpoints if args.initial}
    for path in runs.values():
        inspector = ModelInspector(path, args.data, untrained=True)
        yield arguments.title_distinctly(inspector, runs.values())
    yield from arguments.open_inspectors(args)


def check_choice(models: Sequence[SentenceMaps], args: argparse.Namespace) -> tuple[str, int, int]:
    """Return the site, layer and head that are shown of the first model.

    Raises:
        UsageError: a model has no such site, layer or head.
    """
    for maps in models:
        if args.site not in maps.sites:
            raise UsageError(
                f"{maps.title} has no {SITES[args.site]}; give --site {' or '.join(maps.sites)}"
            )
    grids = [maps.grid(args.site, args.layer, args.head) for maps in models]
    return args.site, *grids[0].large


def draw(models: Sequence[SentenceMaps], args: argparse.Namespace) -> Figure:
    """Draw one head of one model or several, or all heads."""
    axes = AXES[args.site]
    if args.head.startswith("all"):
        grids = [maps.grid(args.site, args.layer, args.head) for maps in models]
        return draw_grids(grids, *axes, args.own_scales)
    pictures = [maps.title_map(args.site, args.layer, args.head) for maps in models]
    if len(pictures) > 1:
        return draw_beside(pictures, args.columns or len(pictures), *axes)
    return draw_map(pictures[0], *axes)
