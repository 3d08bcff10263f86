"""Turn a language model of today into a Hugging Face folder of a Llama or Qwen3."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_ext.evaluation.runs import BUFFERS, get_architecture
from fairseq_ext.interchange import hf_format as hf
from fairseq_ext.interchange import hf_llama
from fairseq_ext.interchange.hf_sequence_tokenizers import write_text_tokenizer
from fairseq_ext.interchange.hf_sequences import NUMBERS, write_model
from fairseq_ext.models.config import default_options, to_dict
from fairseq_ext.models.mixins import drop_adversaries
from fairseq_ext.models.pretrained import saved_options


def convert(
    saved: Mapping[str, Any], checkpoint: Path, folder: Path | None, work: Path
) -> list[str]:
    """Write a language model of today as a Llama or Qwen3; return what was left out."""
    options, parameters = saved_options(saved), drop_adversaries(saved["model"])
    defaults = default_options(MODEL_DATACLASS_REGISTRY[get_architecture(options)])
    options = to_dict(defaults) | options
    parameters = {n: x for n, x in parameters.items() if n.split(".")[-1] not in BUFFERS}
    config, tensors = hf_llama.export_model(options, parameters, checkpoint)
    data = folder or Path(str(saved_options(saved, "task").get("data", "")).partition(":")[0])
    longest = config["max_position_embeddings"]
    write_text_tokenizer(config["vocab_size"], longest, data, work)
    write_model(config, tensors, work)
    hf.write_json(NUMBERS, work / "generation_config.json")
    return [name for name in saved["model"] if name not in parameters]
