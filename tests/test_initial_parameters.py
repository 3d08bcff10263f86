"""Models of one seed begin with the parameters that they had before, under the same names.

`PYTHONPATH=. python tests/test_initial_parameters.py` writes the fixture anew, for a change that is
meant or a new architecture.
"""

import hashlib
import json
from argparse import Namespace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from cases import slow_but_first
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY, build_model
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from labelled import task_on
from labelled_examples import KINDS
from omegaconf import OmegaConf
from pictures_asked import SMALL

import fairseq_ext.registry  # noqa: F401
from fairseq_ext.attention.slots import map_options
from fairseq_ext.models.architectures import FAMILIES

FIXTURE = Path(__file__).parent / "fixtures" / "initial_parameters.json"

PICTURES = [name for name in MODEL_REGISTRY if name.startswith("vqa_")]
REGISTERED = [
    *(f"{kind}_{name}_tiny" for kind, family in FAMILIES.items() for name in family.mechanisms),
    *PICTURES,
    "sentence_cnn",
    "sentence_bilstm",
]


def everywhere(text: str, sites: str = "encoder decoder cross") -> str:
    """Options of a site, at all of these."""
    return " ".join(f"{site}_{option}" for site in sites.split() for option in text.split())


ENCODERS = """
encoder_normaliser=sinkhorn sinkhorn_sweeps=3
encoder_normaliser=hybrid hna_weight=raw hna_init=0.0
encoder_normaliser=hybrid hna_weight=clamp hna_init=0.2
encoder_normaliser=entmax entmax_learned=true entmax_alpha=1.3
encoder_normaliser=sink sink=off-by-one
encoder_scorer=dense synthesizer_length=16
encoder_scorer=random synthesizer_length=16
encoder_scorer=random synthesizer_length=16 synthesizer_fixed=true
encoder_scorer=disentangled disentangled_buckets=8
encoder_scorer=disentangled disentangled_own_projections=true disentangled_terms=c2p
encoder_scorer=disentangled disentangled_raw_embeddings=true disentangled_terms=p2c
encoder_positions=none
encoder_positions=sinusoidal
encoder_positions=alibi
encoder_positions=t5 t5_buckets=8
encoder_positions=rotary
encoder_gaussian_heads=2
encoder_gaussian_heads=2 encoder_roles=rare head_gate=static
encoder_gaussian_heads=all
encoder_roles=rare,relative role_definitions=code
head_gate=static
head_gate=input
head_gate=l0
asa_layers=all asa_per_head=true
asa_layers=upper
encoder_heads_left=3/2/1/0
encoder_heads_left=3/2/1/0 encoder_normaliser=hybrid head_gate=l0
quant_noise_pq=0.1
encoder_normalize_before=true
encoder_layerdrop=0.2
encoder_layers_to_keep=0,2
checkpoint_activations=true
"""

TRANSFORMERS = f"""
{everywhere("normaliser=entmax")} entmax_learned=true
{everywhere("normaliser=sink")}
{everywhere("scorer=dense", "encoder decoder")} synthesizer_length=16
{everywhere("scorer=random", "encoder decoder")} synthesizer_length=16
{everywhere("positions=t5", "encoder decoder")}
{everywhere("positions=learned", "encoder decoder")}
{everywhere("positions=rotary", "encoder decoder")}
{everywhere("head_mixer=talking")}
{everywhere("head_mixer=differential")}
{everywhere("gaussian_heads=2")}
head_gate=static head_gate_sites=encoder,decoder,cross
head_gate=input head_gate_sites=encoder,decoder,cross
head_gate=l0 head_gate_sites=decoder,cross
{everywhere("heads_left=3/2/1/0")}
share_encoder_decoder_layers=true
share_encoder_decoder_layers=true {everywhere("gaussian_heads=2")}
share_encoder_decoder_layers=true encoder_normaliser=hybrid head_gate=static
cross_layers=last
cross_layers=0,2 cross_attention_heads=2
no_cross_attention=true
share_all_embeddings=true
share_decoder_input_output_embed=true layernorm_embedding=true
adaptive_softmax_cutoff=[10,20]
encoder_embed_dim=64 decoder_embed_dim=96 decoder_output_dim=64
decoder_normalize_before=true decoder_layers_to_keep=1,3
"""

ROBERTAS = """
untie_weights_roberta=true
segments=2 max_positions=40
embedding_width=32
embedding_width=32 untie_weights_roberta=true layernorm_embedding=false
encoder_conv_kernel=3
"""

DEBERTAS = """
disentangled_own_projections=true
disentangled_raw_embeddings=true disentangled_buckets=8
encoder_conv_kernel=3 encoder_conv_activation_fn=gelu
enhanced_mask_decoder=true
enhanced_mask_decoder=true embedding_width=32
encoder_positions=learned segments=2
head_gate=input encoder_heads_left=3/2/1/0
"""

LANGUAGE_MODELS = """
decoder_normaliser=entmax entmax_learned=true
decoder_normaliser=sink sink=off-by-one
decoder_scorer=dense synthesizer_length=16
decoder_scorer=random synthesizer_length=16
decoder_positions=learned
decoder_positions=alibi
decoder_positions=t5
decoder_positions=rotary
decoder_gaussian_heads=2
head_gate=static
head_gate=input
head_gate=l0
decoder_heads_left=3/2/1/0
share_decoder_input_output_embed=true
adaptive_softmax_cutoff='10,20' adaptive_input=true adaptive_input_cutoff='10,20'
character_embeddings=true
decoder_layers_to_keep=0,3 quant_noise_pq=0.1
"""

PICTURE_MODELS = [
    "vqa_pythia question_rnn=lstm nonlinear=gated_tanh question_attention_heads=3",
    "vqa_multi_view_una multi_view_heads=2",
    "vqa_multi_view_una multi_view_normaliser=sinkhorn sinkhorn_sweeps=2",
    "vqa_multi_view_hna hna_weight=raw hna_init=0.2 multi_view_heads=3",
]

ON_TASKS = """
roberta_una_tiny | sentence_classification
roberta_una_tiny pooler_activation_fn=relu | sentence_classification pooling=mean
roberta_una_tiny spectral_norm_classification_head=true | sentence_classification
roberta_una_tiny quant_noise_pq=0.1 | sentence_classification
roberta_una_tiny | sentence_classification output=linear freeze_encoder=true
roberta_una_tiny | sentence_classification pooling=attention
roberta_hna_tiny | sentence_classification pooling=attention task_init=uniform:0.9,1 task_layers=3
roberta_una_tiny | sentence_regression pairs=apart
roberta_una_tiny | sentence_regression pairs=apart pooling=attention task_attention_bias=true
roberta_una_tiny | sentence_regression pooling=attention task_attention_norm=true
roberta_una_tiny | multiple_choice
roberta_una_tiny | sequence_tagging
roberta_una_tiny | span_extraction
deberta_una_tiny encoder_conv_kernel=3 | sequence_tagging
sentence_cnn | sentence_classification
sentence_cnn cnn_windows=2,4 cnn_maps=10 | multiple_choice
sentence_bilstm encoder_layers=2 | sentence_classification pooling=attention
roberta_una_tiny segments=2 | masked_lm_sop
roberta_una_tiny segments=2 spectral_norm_classification_head=true | masked_lm_nsp
roberta_una_tiny | replaced_token_detection
roberta_hna_tiny | replaced_token_detection generator_size=0.5
roberta_una_tiny encoder_positions=t5 | replaced_token_detection generator_size=0.25
deberta_una_tiny embedding_width=32 | replaced_token_detection generator_size=0.5
"""


def is_known(case: str) -> bool:
    """Whether architecture and parts are registered: a mechanism may be taken out."""
    name, *options = case.partition("|")[0].split()
    slots, given = map_options(), (option.split("=") for option in options)
    named = [(slots[option].parts, part) for option, part in given if option in slots]
    return name in MODEL_REGISTRY and all(part in parts for parts, part in named)


EVERY = [
    *REGISTERED,
    *(f"transformer_una_tiny {each}" for each in (ENCODERS + TRANSFORMERS).split("\n") if each),
    *(f"roberta_una_tiny {each}" for each in ROBERTAS.split("\n") if each),
    *(f"deberta_una_tiny {each}" for each in DEBERTAS.split("\n") if each),
    *(f"transformer_lm_una_tiny {each}" for each in LANGUAGE_MODELS.split("\n") if each),
    *PICTURE_MODELS,
    *(each for each in ON_TASKS.split("\n") if each),
]
"""Architectures with options, and behind a bar a task that attaches heads."""

QUICK = list(filter(is_known, EVERY))

SLOW = [
    case for each in ENCODERS.split("\n") if each and is_known(case := f"roberta_una_tiny {each}")
]
"""These have what the translation models have, on fairseq's other encoder."""

ELSEWHERE = ("weight_u", "weight_v", "weight_g", "weight.original0", "_float_tensor")
"""Ends of names whose values come from sums, or from nowhere, and differ between processors."""

EXACT = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
"""Whether the processor draws normal numbers as the one that made the fixture, to the last bit."""


def make_dictionary() -> Dictionary:
    words = Dictionary()
    for n in range(40):
        words.add_symbol(f"w{n}" if n else ",", n=50 - n)
    words.add_symbol("<mask>", n=0)
    return words


def build(case: str, folder: Path) -> torch.nn.Module:
    """A model of seed 1; the folder is for files of its task."""
    (name, *options), *on_task = (part.split() for part in case.split("|"))
    sizes = SMALL if name in PICTURES else {}
    if name.startswith("transformer_lm"):  # these are the task's else
        sizes = {"tokens_per_sample": 30, "max_target_positions": 30}
    cfg = OmegaConf.create({"_name": name, **sizes, **to_dict(options)})
    words = make_dictionary()
    if on_task:
        task = make_task(*on_task[0], folder=folder, words=words)
    else:
        dictionaries = {"source_dictionary": words, "target_dictionary": words}
        answers = {"answers": ["no", "yes", "2"], "width": 6}
        task = Namespace(**dictionaries, **answers, cfg=Namespace(), max_positions=lambda: 30)
    torch.manual_seed(1)
    return task.build_model(cfg) if on_task else build_model(cfg, task)


def to_dict(options: list[str]) -> dict:
    return OmegaConf.to_container(OmegaConf.from_dotlist(options))


def make_task(name: str, *options: str, folder: Path, words: Dictionary):
    if name in KINDS:
        return task_on(name, folder, list(map(KINDS[name].example, range(6))), **to_dict(options))
    cfg = OmegaConf.structured(TASK_DATACLASS_REGISTRY[name](data=str(folder)))
    cfg.update({"_name": name, "seed": 1, "tokens_per_sample": 30, **to_dict(options)})
    return TASK_REGISTRY[name](cfg, words)


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def describe(model: torch.nn.Module) -> dict[str, tuple[bytes, bytes]]:
    """Map the name of each saved value to hashes of its kind, shape and ties, and of its bytes."""
    owners, found = {}, {}
    for name, value in model.state_dict(keep_vars=True).items():
        owner = owners.setdefault((value.data_ptr(), value.shape), name)
        facts = name, str(value.dtype), tuple(value.shape), value.requires_grad, owner
        known = not name.endswith(ELSEWHERE)
        data = value.detach().contiguous().numpy().tobytes() if known else b""
        found[name] = digest(repr(facts).encode()), digest(data)
    return found


def summarise(model: torch.nn.Module) -> list[str]:
    """Hashes of all names and shapes, and of all values; and short ones of both, of each value."""
    pairs = list(describe(model).values())
    each = "".join(digest(*pair).hex()[:4] for pair in pairs)
    hashes = (digest(*parts).hex()[:16] for parts in zip(*pairs, strict=True))
    return [*hashes, each]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[str]]:
    return json.loads(FIXTURE.read_text("utf-8"))


def test_every_case_is_in_the_fixture(expected):
    assert sorted(filter(is_known, expected)) == sorted(QUICK + SLOW)


def name_first_difference(model: torch.nn.Module, found: str, wanted: str) -> str:
    """The name at which short hashes begin to differ; what is there no more has none."""
    for place, name in enumerate(describe(model)):
        own = slice(4 * place, 4 * place + 4)
        if found[own] != wanted[own]:
            return name
    return "a value that is missing at the end"


@pytest.mark.parametrize("case", [*QUICK, *slow_but_first(SLOW)])
def test_initial_parameters_are_what_they_were(case, expected, tmp_path):
    model = build(case, tmp_path)
    found, wanted = summarise(model), expected[case]
    compared = slice(2) if EXACT else slice(1)
    if found[compared] != wanted[compared]:
        first = name_first_difference(model, found[2], wanted[2])
        pytest.fail(f"{case} does not begin as it did; the first to differ is {first}")


def write_fixture() -> None:
    lines = []
    for case in QUICK + SLOW:
        with TemporaryDirectory() as folder:
            lines.append(f"{json.dumps(case)}: {json.dumps(summarise(build(case, Path(folder))))}")
    FIXTURE.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    write_fixture()
