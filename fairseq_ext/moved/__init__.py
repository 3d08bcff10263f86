"""Import paths of earlier versions, and where their modules and names are now.

`finder` keeps the old paths importable, with a DeprecationWarning. `python -m fairseq_ext.moved`
prints the table for docs/upgrading.md, and `fairseq-ext doctor --user-dir` looks for old paths in a
package. Whoever moves a module or a name adds an entry here, and corrects those that end there.
"""

MOVED = {
    "analysis.picture_inspector": "vqa.picture_inspector",
    "analysis.subjects": "analysis.inspector",
    "attention.differential": "mechanisms.differential",
    "attention.disentangled": "mechanisms.disentangled",
    "attention.doubly": "mechanisms.doubly",
    "attention.entmax": "mechanisms.entmax",
    "attention.inputs": "attention.context",
    "attention.kernels": "mechanisms.kernels",
    "attention.kernels.distances": "mechanisms.kernels.distances",
    "attention.kernels.doubly_cpu": "mechanisms.kernels.doubly_cpu",
    "attention.kernels.doubly_triton": "mechanisms.kernels.doubly_triton",
    "attention.kernels.doubly_triton_jit": "mechanisms.kernels.doubly_triton_jit",
    "attention.kernels.sink_sdpa": "mechanisms.kernels.sink_sdpa",
    "attention.kernels.toeplitz": "mechanisms.kernels.toeplitz",
    "attention.learned_gates": "mechanisms.head_gates",
    "attention.model_report": "models.model_report",
    "attention.multi_view": "vqa.multi_view",
    "attention.second_pass": "mechanisms.second_pass.passes",
    "attention.sink": "mechanisms.sink",
    "attention.sinkformer": "mechanisms.sinkformer",
    "attention.softmax": "attention.normalisers",
    "attention.synthesizer": "mechanisms.synthesizer",
    "attention.talking_heads": "mechanisms.talking_heads",
    "criterions.vqa": "vqa.criterion",
    "data.picture_features": "vqa.picture_features",
    "data.question_batches": "vqa.question_batches",
    "data.questions": "vqa.questions",
    "data.vqa_answers": "vqa.answers",
    "guidance": "mechanisms.guidance",
    "guidance.loss": "mechanisms.guidance.loss",
    "guidance.patterns": "mechanisms.guidance.patterns",
    "guidance.plan": "mechanisms.guidance.plan",
    "guidance.schedule": "mechanisms.guidance.schedule",
    "models.head_options": "attention.building",
    "models.heads_left": "attention.building",
    "models.mixer_options": "attention.building",
    "models.vqa": "vqa.models",
    "models.vqa_parts": "vqa.model_parts",
    "prepare.feature_sources": "vqa.prepare.feature_sources",
    "prepare.feature_views": "vqa.prepare.feature_views",
    "prepare.hdf5_source": "vqa.prepare.hdf5_source",
    "prepare.picture_world": "vqa.world",
    "prepare.picture_world.annotators": "vqa.world.annotators",
    "prepare.picture_world.contact_sheet": "vqa.world.contact_sheet",
    "prepare.picture_world.detectors": "vqa.world.detectors",
    "prepare.picture_world.generate": "vqa.world.generate",
    "prepare.picture_world.question_kinds": "vqa.world.question_kinds",
    "prepare.picture_world.rare_part": "vqa.world.rare_part",
    "prepare.picture_world.scenes": "vqa.world.scenes",
    "prepare.vqa_features": "vqa.prepare.features",
    "prepare.vqa_questions": "vqa.prepare.question_files",
    "prepare.vqa_release": "vqa.prepare.release",
    "resuming_checks": "training.resuming_checks",
    "roles": "mechanisms.roles",
    "roles.pieces": "data.pieces",
    "roles.role_masks": "mechanisms.roles.role_masks",
    "roles.symbols": "data.symbols",
    "roles.word_alignment": "data.word_alignment",
    "tasks.vqa": "vqa.task",
    "tools.export_hf": "interchange.export_hf",
    "tools.export_vectors": "interchange.export_vectors",
    "tools.hf_deberta": "interchange.hf_deberta",
    "tools.hf_deberta_first": "interchange.hf_deberta_first",
    "tools.hf_format": "interchange.hf_format",
    "tools.hf_vocabulary": "interchange.hf_vocabulary",
    "tools.import_hf": "interchange.import_hf",
    "tools.predict_answers": "vqa.predict_answers",
    "tools.sentence_pieces": "interchange.sentence_pieces",
    "training_checks": "training.training_checks",
    "analysis.subjects:Heard": "analysis.recording:LayerAttention",
    "analysis.subjects:Subject": "analysis.inspector:ModelInspector",
    "attention.gates:build_static_gate": "mechanisms.head_gates:build_static_gate",
    "attention.head_groups:build_gaussian_heads": "mechanisms.gaussian:build_gaussian_heads",
    "attention.inputs:Frame": "attention:AttentionContext",
    "attention.inputs:Listener": "attention:AttentionRecorder",
    "attention.normalisers:Entmax": "mechanisms.entmax:Entmax",
    "attention.normalisers:GPU_KERNELS": "mechanisms.doubly:GPU_KERNELS",
    "attention.normalisers:Hybrid": "mechanisms.doubly:Hybrid",
    "attention.normalisers:Sink": "mechanisms.sink:Sink",
    "attention.normalisers:Sinkformer": "mechanisms.sinkformer:Sinkformer",
    "attention.normalisers:Sinkhorn": "mechanisms.doubly:Sinkhorn",
    "attention.normalisers:Unnormalised": "mechanisms.gaussian:Unnormalised",
    "attention.parts:Option": "attention.options:Option",
    "attention.parts:read_help": "attention.options:read_help",
    "attention.parts:read_options": "attention.options:read_options",
    "attention.positions:Alibi": "mechanisms.relative_positions:Alibi",
    "attention.positions:Buckets": "mechanisms.relative_positions:Buckets",
    "attention.positions:Rotary": "mechanisms.relative_positions:Rotary",
    "attention.scorers:Gaussian": "mechanisms.gaussian:Gaussian",
    "attention.second_pass:Adversary": "mechanisms.second_pass.adversary:Adversary",
    "attention.second_pass:straight_through_step": "mechanisms.second_pass.adversary:straight_through_step",
    "attention.softmax:Unnormalised": "mechanisms.gaussian:Unnormalised",
    "attention:Adversary": "mechanisms.second_pass.adversary:Adversary",
    "attention:Differential": "mechanisms.differential:Differential",
    "attention:Disentangled": "mechanisms.disentangled:Disentangled",
    "attention:Frame": "attention:AttentionContext",
    "attention:Heads": "attention:HeadGroup",
    "attention:InputGate": "mechanisms.head_gates:InputGate",
    "attention:L0Gate": "mechanisms.head_gates:L0Gate",
    "attention:Listener": "attention:AttentionRecorder",
    "attention:SecondPass": "mechanisms.second_pass.passes:SecondPass",
    "attention:Synthesizer": "mechanisms.synthesizer:Synthesizer",
    "attention:TalkingHeads": "mechanisms.talking_heads:TalkingHeads",
    "attention:build_gaussian_heads": "mechanisms.gaussian:build_gaussian_heads",
    "attention:gaussian_heads": "mechanisms.gaussian:build_gaussian_heads",
    "guidance.plan:ALL_LAYERS": "attention.sites:ALL_LAYERS",
    "guidance.plan:SITES": "attention.sites:SITES",
    "guidance.plan:choose_layers": "attention.sites:choose_layers",
    "models.head_options:check_gate_sites": "models.model_options:check_gate_sites",
    "models.head_options:embed_positions": "models.model_options:embed_positions",
    "models.head_options:name_positions": "models.model_options:name_positions",
    "models.head_options:parse_adversary_layers": "mechanisms.second_pass.adversary:parse_adversary_layers",
    "models.head_options:parse_cross_layers": "models.model_options:parse_cross_layers",
}
"""Old -> new path in this package: of a module, or as "module:name" of a name in a module."""


def find_new(module: str, name: str = "") -> str | None:
    """Return the new path of a module, or of a name in it; None if it has not moved.

    Args:
        module: its old path in this package, or "" for the package itself.
        name: of a module or anything else in it; "" for the module itself.
    """
    if not name:
        return MOVED.get(module)
    new = MOVED.get(f"{module}:{name}") or MOVED.get(f"{module}.{name}".lstrip("."))
    if new is None and module in MOVED and not name.startswith("__"):
        return f"{MOVED[module]}:{name}"
    return new


def write_out(path: str) -> str:
    """Return a path of the table as Python has it."""
    return f"fairseq_ext.{path.replace(':', '.')}"


def as_markdown() -> str:
    """Return the table of all old paths, one row for each."""
    rows = [f"| `{write_out(old)}` | `{write_out(new)}` |\n" for old, new in MOVED.items()]
    return "".join(["| old | new |\n", "| --- | --- |\n", *rows])
