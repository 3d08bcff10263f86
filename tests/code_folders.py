"""Checkpoints of small models with mechanisms, and the folders with code that they become."""

import json
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_REGISTRY
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from fairseq_ext.cli import main
from fairseq_ext.data.tokenisers import SYMBOLS
from fairseq_ext.testing.mechanisms import NO_DROPOUT, SIZES, build_tiny_model

WORDS = 40


def write_data(folder: Path) -> None:
    """Write the dictionaries of `build_tiny_model`, and a tokeniser of their words."""
    folder.mkdir(exist_ok=True)
    words = Dictionary()
    for n in range(WORDS):
        words.add_symbol(f"w{n}" if n < WORDS - 1 else "<mask>", n=50 - n)
    for name in ("dict.txt", "dict.de.txt", "dict.en.txt"):
        words.save(str(folder / name))
    numbers = {symbol: i for i, symbol in enumerate(words.symbols)}
    tokenizer = Tokenizer(WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(list(SYMBOLS))
    tokenizer.save(str(folder / "tokenizer.json"))


def save_model(architecture: str, folder: Path, **options: Any) -> tuple[Any, Path]:
    """Return a small model, and the checkpoint that holds it."""
    write_data(folder)
    known = getattr(MODEL_REGISTRY[architecture], "__dataclass").__dataclass_fields__
    config = {name: field.default for name, field in known.items()}
    config |= {name: size for name, size in (SIZES | NO_DROPOUT).items() if name in known}
    model = build_tiny_model(architecture, **options)
    config |= {"_name": architecture, **options}
    for name, value in list(config.items()):
        if isinstance(value, str) and value.startswith("${"):  # the width of a decoder
            config[name] = config["decoder_embed_dim"] if "embed_dim" in value else None
    task = {"_name": "translation", "data": str(folder), "source_lang": "de", "target_lang": "en"}
    path = folder / f"{architecture}.pt"
    cfg = {"model": config, "task": task}
    rest = {"args": None, "extra_state": {}, "optimizer_history": [{}]}
    torch.save({"cfg": cfg, "model": model.state_dict(), **rest}, path)
    return model, path


def export(checkpoint: Path, out: Path) -> dict[str, Any]:
    """Export a checkpoint, and return its config.json."""
    main(["export-hf", str(checkpoint), str(out)])
    return json.loads((out / "config.json").read_text("utf-8"))
