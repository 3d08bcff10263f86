"""Trained models in Python and in notebooks: load, translate, maps of attention, statistics.

    from fairseq_ext.analysis.notebook import load

    model = load("checkpoints/mine/checkpoint_last.pt", "data-bin/mine")
    model.translate("two dogs run .")
    attention = model.attend("two dogs run .")
    attention.map("encoder", layer=0, head=1)       # a tensor [T, S]
    attention.draw("encoder", layer=0, head=1)      # a figure
    model.statistics("test", limit=100)             # a row for each head

Text is that of the training data: tokenised words for a translation model (raw text if it was split
by SentencePiece), plain text for an encoder. Words are split into pieces as in the folder of data.
"""

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch import Tensor

from fairseq_ext.analysis import heads
from fairseq_ext.analysis.heatmaps import draw_grids, draw_map
from fairseq_ext.analysis.inspector import MAX_TOKENS, ModelInspector
from fairseq_ext.analysis.sentence_maps import AXES, SentenceMaps, choose_map, read_sentence
from fairseq_ext.analysis.statistics import collect
from fairseq_ext.analysis.tokens import SHOWN_SPACE
from fairseq_ext.data.pieces import detect_mark
from fairseq_ext.errors import UsageError


def load(checkpoint: str | Path, data: str | Path | None = None) -> "Model":
    """Return the model of a checkpoint, on the CPU and in evaluation mode.

    Args:
        checkpoint: a file that fairseq-train or `fairseq-ext import-hf` wrote.
        data: folder with its dictionaries; by default the one that the checkpoint names.

    Raises:
        UsageError: there is no such file, it holds no model that can be analysed, or data are
            missing.
    """
    return Model(ModelInspector(Path(checkpoint), None if data is None else Path(data)))


class Model:
    """A trained model, for translations and for its attention.

    Attributes:
        inspector: what reads the model, for more than is here.
        title: the model's name in pictures.
        heads: the number of heads by site ("encoder", "decoder", "cross") and layer.
    """

    def __init__(self, inspector: ModelInspector) -> None:
        self.inspector = inspector
        self.title = inspector.title
        self.heads: Mapping[str, Mapping[int, int]] = inspector.heads

    def translate(self, sentence: str, remove_bpe: str | None = "data") -> str:
        """Return the best translation that beam search (beam 5) finds.

        Args:
            sentence: words as in the training data.
            remove_bpe: how pieces are joined, as by fairseq-generate's --remove-bpe; "data": as the
                target's dictionary marks them. None leaves them as they are.

        Raises:
            UsageError: this is no translation model, or the sentence is empty or too long.
        """
        if not self.inspector.translates:
            raise UsageError(f"{self.title} does not translate; give a translation model")
        target = self.inspector.translate(self._encode(sentence))
        words = self.inspector.task.target_dictionary
        if remove_bpe == "data":
            raw = detect_mark(words.symbols) == SHOWN_SPACE
            remove_bpe = "sentencepiece" if raw else "@@ "
        return words.string(target, remove_bpe)

    def attend(self, sentence: str, target: str | None = None) -> "Attention":
        """Return the attention of all heads for one sentence.

        Args:
            sentence: what the encoder reads.
            target: what the decoder of a translation model predicts; by default its translation.

        Raises:
            UsageError: a sentence is empty or too long.
        """
        predicted = None
        if target is not None:
            codec = self.inspector.codec
            predicted = codec.encode(target.split(), target=True).numbers
        batch = read_sentence(self.inspector, sentence, predicted)
        batch = self.inspector.keep_first_row(batch)
        sites = {
            site: {layer: maps[0] for layer, maps in layers.items()}
            for site, layers in self.inspector.maps(batch).items()
        }
        tokens = {site: self.inspector.label_axes(batch, site) for site in sites}
        return Attention(SentenceMaps(self.title, sites, tokens))

    def statistics(
        self, split: str = "test", limit: int | None = None, max_tokens: int = MAX_TOKENS
    ) -> list[dict[str, Any]]:
        """Return a row for each head: site, layer, head and means over a split.

        These are entropy (nats), distance (tokens), similarity to the other heads of the layer,
        and the fit to each pattern of attention guidance, as in `fairseq-ext heads`.

        Args:
            split: a part of the data, such as "test".
            limit: how many sentences, at most.
            max_tokens: tokens of a batch.

        Raises:
            UsageError: there is no such split, or the model can read no sentence of it.
        """
        collector = heads.new_statistics(self.inspector)
        settings = Namespace(split=split, limit=limit, max_tokens=max_tokens)
        collect(self.inspector, settings, collector)
        return collector.rows()

    def _encode(self, sentence: str) -> Tensor:
        return self.inspector.words(sentence.split()).numbers


class Attention:
    """The attention of all heads of a model for one sentence.

    Attributes:
        sites: maps [H, T, S] by site ("encoder", "decoder", "cross") and layer.
    """

    def __init__(self, maps: SentenceMaps) -> None:
        self._maps = maps
        self.sites = maps.sites

    def map(self, site: str = "encoder", layer: int | None = None, head: int | str = 0) -> Tensor:
        """Return a map [T, S]: how much each query (row) attends to each key (column).

        Args:
            site: "encoder", "decoder" or "cross".
            layer: counted from 0; by default the last one.
            head: counted from 0, or "mean".

        Raises:
            UsageError: there is no such site, layer or head.
        """
        return choose_map(self._layers(site), layer, str(head))[0]

    def tokens(self, site: str = "encoder") -> tuple[list[str], list[str]]:
        """Return the tokens at the rows and at the columns of a site's maps."""
        self._layers(site)
        return self._maps.tokens[site]

    def draw(
        self, site: str = "encoder", layer: int | None = None, head: int | str = "all"
    ) -> Figure:
        """Return a figure of one head, of the "mean" of a layer, or of "all" heads of all layers.

        Raises:
            UsageError: there is no such site, layer or head.
        """
        self._layers(site)
        if str(head).startswith("all"):
            return draw_grids([self._maps.grid(site, layer, str(head))], *AXES[site])
        return draw_map(self._maps.title_map(site, layer, str(head)), *AXES[site])

    def for_bertviz(self) -> dict[str, Any]:
        """Return the arguments of BertViz's `head_view` and `model_view`.

        `bertviz.head_view(**attention.for_bertviz())` shows the same maps there.
        """
        maps = {
            site: [each[None] for each in layers.values()] for site, layers in self.sites.items()
        }
        if set(maps) == {"encoder"}:
            return {"attention": maps["encoder"], "tokens": self.tokens("encoder")[1]}
        arguments: dict[str, Any] = {f"{site}_attention": each for site, each in maps.items()}
        arguments["encoder_tokens"] = self.tokens("encoder")[1]
        arguments["decoder_tokens"] = self.tokens("decoder")[1]
        return arguments

    def _layers(self, site: str) -> dict[int, Tensor]:
        if site not in self.sites:
            raise UsageError(f"the site is {site!r} and must be one of {', '.join(self.sites)}")
        return self.sites[site]
