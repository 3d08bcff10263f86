"""Turn a checkpoint into graphs that torch alone, or ONNX Runtime alone, runs.

OUT gets encoder.pt2 for torch.export.load, or encoder.onnx, with inputs of any number of rows and
any length: tokens to features, and to logits if the model has a head. Translation and language
models get decoder_step.pt2 or .onnx, one step of decoding with its cache as inputs and outputs.
graphs.json names the inputs, outputs and sizes; dict.txt has the symbols. Graphs are compared with
the model before they are written. A model that needs parses, or that cannot be traced, is refused.

Example:
  fairseq-ext export-graph checkpoints/mine/checkpoint_best.pt graphs
  fairseq-ext export-graph checkpoints/mine/checkpoint_best.pt graphs --format onnx
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from torch import Tensor
from torch.export import Dim, ExportedProgram

from fairseq_ext.attention.options import flag
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.runs import get_architecture
from fairseq_ext.extras import import_extra
from fairseq_ext.files import new_folder
from fairseq_ext.interchange.code_config import list_mechanisms
from fairseq_ext.interchange.graphs import (
    BATCH,
    LENGTH,
    PAST,
    Computation,
    Tensors,
    list_computations,
    prepare,
)
from fairseq_ext.interchange.hf_format import write_json
from fairseq_ext.models.architectures import FAMILIES
from fairseq_ext.models.pretrained import saved_options
from fairseq_ext.models.role_options import roles_with_parses
from fairseq_ext.safe_loading import read_checkpoint

ONNX = ("onnx", "onnxscript", "onnxruntime")
PADDING = ("tokens", "memory_padding")  # inputs that tell it
TOLERANCES = {"torch": 1e-5, "onnx": 1e-4}  # of outputs, relative to the largest if it is over 1
SIZES = [{BATCH: 4, LENGTH: 7, PAST: 5}, {BATCH: 6, LENGTH: 12, PAST: 9}]
"""Sizes of the inputs with which graphs are made, and compared; the smallest ones are compared too.

Tracing tends to take a 1 for a number that is the same in all inputs.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fairseq-ext export-graph`."""
    add = parser.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT")
    add("out", type=Path, metavar="OUT", help="folder to be made")
    add("--format", choices=[*TOLERANCES], default="torch", help="of graphs (default: torch)")
    add("--features", action="store_true", help="leave out the head of an encoder")
    folder = "with dict.txt or the dictionaries of both languages (default: what CHECKPOINT names)"
    add("--vocabulary", type=Path, metavar="FOLDER", help=folder)


def run(args: argparse.Namespace) -> None:
    """Write the folder, and print what is in it."""
    if args.format == "onnx":
        for name in ONNX:
            import_extra(name, "onnx", "--format onnx")
    with new_folder(args.out) as work:
        options = saved_options(read_checkpoint(args.checkpoint))
        check_options(options, args.checkpoint)
        data = {"data": str(args.vocabulary)} if args.vocabulary else {}
        (model,), _, task = load_model_ensemble_and_task([str(args.checkpoint)], data)
        which = f"{args.checkpoint} has {name_mechanisms(options)}"
        files = export(model.eval(), task, args.format, not args.features, which, work)
    print(f"{args.out} has {', '.join(files)}, graphs.json and the symbols")


def check_options(options: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError for another model than an encoder, a translation or a language model."""
    name = get_architecture(options)
    bases = tuple(family.base for family in FAMILIES.values())
    if not issubclass(MODEL_REGISTRY.get(name, object), bases):
        raise UsageError(
            f"{path} has --arch {name}; give a translation, language or RoBERTa-style model of "
            "ours, such as roberta_una"
        )
    if parsed := roles_with_parses(options):
        raise UsageError(
            f"{path} has --encoder-roles {options['encoder_roles']}, of which {', '.join(parsed)} "
            "need parses, which a graph does not get; give a model without them"
        )


def name_mechanisms(options: Mapping[str, Any]) -> str:
    """Return the options of a model that are not softmax, or its architecture."""
    named = list_mechanisms(options) or {"arch": get_architecture(options)}
    return " ".join(flag(name, value) for name, value in named.items())


def export(model: Any, task: Any, kind: str, head: bool, which: str, work: Path) -> list[str]:
    """Write the graphs of a model with what a reader needs to know; return the names of the files.

    Args:
        kind: a key of TOLERANCES.
        which: how errors begin, with the options of the model.
        work: the folder to fill.

    Raises:
        UsageError: a graph cannot be made, or computes something else.
    """
    limits = measure_limits(model)
    prepare(model)
    graphs, languages = {}, iter(list_languages(task))
    parts = list_computations(model, head)
    if any(part.paired for part in parts):
        limits[BATCH] = [4, None]  # tracing takes a single pair for another case
    for part in parts:
        file = f"{part.name}.{'pt2' if kind == 'torch' else 'onnx'}"
        try:
            outputs = write_graph(part, kind, limits, work / file)
        except Exception as error:  # torch and its exporter have many
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"{which}, with which its {part.name} cannot become a graph for {kind} "
                f"({type(error).__name__}: {reason}); give another model or --format"
            ) from error
        language = next(languages, "")
        dictionary = f"dict.{language}.txt" if language else "dict.txt"
        part.words.save(str(work / dictionary))
        graphs[part.name] = {
            "file": file,
            "dictionary": dictionary,
            "symbols": list_symbols(part.words),
            "inputs": {n: describe(port.dtype, port.shape) for n, port in part.inputs.items()},
            "outputs": outputs,
        }
    write_json({"sizes": limits, "graphs": graphs}, work / "graphs.json")
    return [graph["file"] for graph in graphs.values()]


def measure_limits(model: Any) -> dict[str, list[int | None]]:
    """Return the least and the largest value of each dynamic size; None if there is no largest."""
    limits: dict[str, list[int | None]] = {BATCH: [1, None]}
    if hasattr(model, "encoder"):
        limits[LENGTH] = [1, model.encoder.max_positions()]
    if hasattr(model, "decoder"):
        limits[PAST] = [0, model.decoder.max_positions() - 1]
    return limits


def list_languages(task: Any) -> list[str]:
    """Return the languages of the source and the target, if a task has them."""
    languages = (getattr(task.cfg, f"{side}_lang", None) for side in ("source", "target"))
    return [language for language in languages if language]


def list_symbols(words: Dictionary) -> dict[str, int]:
    """Return the numbers of the symbols that are no words."""
    symbols = {"bos": words.bos(), "pad": words.pad(), "eos": words.eos(), "unk": words.unk()}
    return symbols | ({"mask": words.index("<mask>")} if "<mask>" in words else {})


def describe(dtype: torch.dtype, shape: Iterable[str | int]) -> dict[str, Any]:
    """Return what graphs.json says of a tensor."""
    return {"dtype": str(dtype).removeprefix("torch."), "shape": [*shape]}


def write_graph(part: Computation, kind: str, limits: Mapping[str, list], path: Path) -> Any:
    """Write a graph; return what graphs.json says of its outputs.

    Raises:
        ValueError: the graph computes something else.
    """
    smallest = {name: least for name, (least, _) in limits.items()}
    examples = [make_example(part, sizes) for sizes in (*SIZES, smallest)]
    with torch.no_grad():
        program = trace(part, examples[0], limits)
        results = [part(example) for example in examples]
        shapes = {name: name_sizes([each[name] for each in results[:2]]) for name in results[0]}
        compute = SAVE[kind](program, [*part.inputs], [*shapes], path)
        for example, expected in zip(examples, results, strict=True):
            check_same(part, example, expected, compute(example), shapes, TOLERANCES[kind])
    return {name: describe(results[0][name].dtype, shape) for name, shape in shapes.items()}


def make_example(part: Computation, sizes: Mapping[str, int]) -> Tensors:
    """Return random inputs, of which the first row has padding on its right, the last on its left.

    Numbers of segments are 0, which all models have.
    """
    generator, example = torch.Generator().manual_seed(1), {}
    for name, port in part.inputs.items():
        shape = [size if isinstance(size, int) else sizes[size] for size in port.shape]
        if port.dtype == torch.long and name != "segments":
            x = torch.randint(part.words.nspecial, len(part.words), shape, generator=generator)
        elif port.dtype.is_floating_point:
            x = torch.randn(shape, generator=generator)
        else:
            x = torch.zeros(shape, dtype=port.dtype)
        if name in PADDING and shape[1] > 2:
            x[0, -2:] = x[-1, :2] = part.words.pad() if name == "tokens" else True
        example[name] = x
    return example


def trace(part: Computation, example: Tensors, limits: Mapping[str, list]) -> ExportedProgram:
    """Return the graph of a computation, for all sizes within their limits."""
    sizes: dict[Any, Any] = {n: Dim(n, min=least, max=most) for n, (least, most) in limits.items()}
    if part.paired:
        sizes[BATCH] = 2 * Dim("pairs", min=limits[BATCH][0] // 2)
    dynamic = {
        name: {axis: sizes[size] for axis, size in enumerate(port.shape) if size in sizes}
        for name, port in part.inputs.items()
    }
    return torch.export.export(part.eval(), (example,), dynamic_shapes=(dynamic,), strict=False)


def name_sizes(results: Sequence[Tensor]) -> list[str | int]:
    """Return the shape of an output by names, of which it had one value with each of SIZES."""
    names = {tuple(sizes[name] for sizes in SIZES): name for name in SIZES[0]}
    names[tuple(sizes[PAST] + 1 for sizes in SIZES)] = f"{PAST} + 1"
    names[tuple(sizes[BATCH] // 2 for sizes in SIZES)] = f"{BATCH} / 2"
    pairs = zip(*(each.shape for each in results), strict=True)
    return [one if one == other else names[one, other] for one, other in pairs]


def check_same(
    part: Computation,
    example: Tensors,
    expected: Tensors,
    found: Tensors,
    shapes: Mapping[str, list[str | int]],
    tolerance: float,
) -> None:
    """Raise ValueError unless outputs are those of the model, where tokens are no padding."""
    real = example["tokens"].ne(part.words.pad()) if "tokens" in example else None
    for name, shape in shapes.items():
        one, other = expected[name], found[name]
        if LENGTH in shape and real is not None:
            one, other = (x.movedim(shape.index(LENGTH), 1)[real] for x in (one, other))
        scale = one.abs().max().clamp(min=1) if one.is_floating_point() else 1
        difference = (one.float() - other.float()).abs().max() / scale
        if not difference < tolerance:
            raise ValueError(f"{name} differs by {difference:.2g} from the model's")


def save_torch(
    program: ExportedProgram, inputs: list[str], outputs: list[str], path: Path
) -> Callable[[Tensors], Tensors]:
    """Save a graph for torch; return what runs the saved one."""
    torch.export.save(program, path)
    return torch.export.load(path).module()


def save_onnx(
    program: ExportedProgram, inputs: list[str], outputs: list[str], path: Path
) -> Callable[[Tensors], Tensors]:
    """Save a graph for ONNX Runtime; return what runs the saved one."""
    onnxruntime = import_extra("onnxruntime", "onnx", "--format onnx")
    exported: Any = torch.onnx.export(
        program, input_names=inputs, output_names=outputs, dynamo=True, verbose=False
    )
    exported.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def compute(given: Tensors) -> Tensors:
        arrays = session.run(outputs, {name: x.numpy() for name, x in given.items()})
        return dict(zip(outputs, map(torch.from_numpy, arrays), strict=True))

    return compute


SAVE = {"torch": save_torch, "onnx": save_onnx}
"""Format -> function that saves a graph, and returns what runs it."""
