"""Families of models whose training steps are checked on a GPU: their data, and their flags."""

import alternatives
import asa
import pretraining
import steps
import training

AG = "--ag-alpha 10 --ag-decay-updates 1000"
GUIDED = "--criterion label_smoothed_cross_entropy_ag --ag-encoder-heads next:1,prev:1 " + AG
OPEN = {  # today's alternatives
    name: flags
    for row in alternatives.print_mechanisms.read_rows(alternatives.STUDY.parents[2])
    if "alternative_to" in row and "term" not in row
    for name, flags in row["variants"].items()
}
FAMILIES = {  # data, flags
    "stock": (training, f"--arch transformer {' '.join(training.TINY)}"),
    "una": (training, "--arch transformer_una_tiny"),
    "dna": (training, "--arch transformer_dna_tiny"),
    "hna": (training, "--arch transformer_hna_tiny"),
    "sinkhorn": (
        training,
        "--arch transformer_una_tiny --encoder-normaliser sinkhorn --sinkhorn-sweeps 3",
    ),
    "gaussian": (training, "--arch transformer_gaussian_tiny"),
    "roles": (training, "--arch transformer_roles_tiny"),
    "gates": (training, "--arch transformer_una_tiny --head-gate"),
    "ag": (training, f"--arch transformer_una_tiny {GUIDED}"),
    "translation asa": (
        training,
        "--arch transformer_asa_tiny --criterion label_smoothed_cross_entropy_asa",
    ),
    **{name: (training, f"--arch transformer_una_tiny {flags}") for name, flags in OPEN.items()},
    "masked_lm": (pretraining, "--arch roberta_una_tiny --criterion masked_lm"),
    "masked_lm dna": (pretraining, "--arch roberta_dna_tiny --criterion masked_lm"),
    "masked_lm hna": (pretraining, "--arch roberta_hna_tiny --criterion masked_lm"),
    "masked_lm_ag": (
        pretraining,
        f"--arch roberta_una_tiny --criterion masked_lm_ag --ag-fraction 0.5 {AG}",
    ),
    "masked_lm_asa": (pretraining, "--arch roberta_asa_tiny --criterion masked_lm_asa"),
    "replaced tokens": (
        pretraining,
        "--task replaced_token_detection --arch roberta_una_tiny "
        "--criterion replaced_token_detection",
    ),
    **{
        name: (asa, f"{flags} {' '.join(steps.shape(asa.SIZES['tiny']))}")
        for name, flags in asa.CANDIDATES.items()
        if name not in ("freelb_3", "smart_2")
    },
    "task attention": (
        asa,
        "--arch roberta_una_tiny --criterion sentence_classification --pooling attention",
    ),
}
