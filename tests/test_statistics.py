"""Numbers about maps: against loops in float64, over batches of any shape, and the verbs."""

import csv
import json
import math
import shutil
from argparse import Namespace
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from fairseq_ext import cli
from fairseq_ext.analysis import columns, heads, statistics, weights
from fairseq_ext.analysis.recording import SITES, LayerAttention
from fairseq_ext.analysis.statistics import ColumnSums, HeadStatistics
from fairseq_ext.attention import build_normaliser
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.pictures import save
from fairseq_ext.mechanisms.guidance.patterns import PATTERNS, View

B, H, T = 3, 4, 6
LENGTHS = (6, 4, 2)


class Symbols(list):
    def index(self, symbol):
        return list.index(self, symbol)


DICTIONARY = Symbols(["<pad>", "</s>", ".", "a", "b"])


def heard(kind="softmax", site="encoder", left=False, seed=1, scale=3.0) -> LayerAttention:
    """Maps of three sentences of different lengths, as attention makes them."""
    torch.manual_seed(seed)
    real = torch.tensor([[i < n for i in range(T)] for n in LENGTHS])
    tokens = torch.where(real, torch.randint(2, 5, (B, T)), 0)
    tokens[torch.arange(B), torch.tensor(LENGTHS) - 1] = 1
    scores = torch.randn(B, H, T, T) * scale
    if left:
        scores, tokens, real = scores.flip(2, 3), tokens.flip(1), real.flip(1)
    bias = torch.zeros(B, 1, 1, T).masked_fill(~real[:, None, None], float("-inf"))
    normaliser = build_normaliser(kind, H, hna_init=0.3, hna_weight="sigmoid", sinkhorn_sweeps=2)
    maps = normaliser.weights(scores, bias, ~real, slice(0, H)).detach()
    return LayerAttention(site, 0, maps, View(tokens, real, real, causal=site == "decoder"))


def naive(found: LayerAttention, head: int) -> dict[str, float]:
    """All numbers of a head, with loops."""
    totals: dict[str, list[float]] = {}
    for b, n in enumerate(LENGTHS):
        places = [i for i in range(T) if found.view.keys[b, i]]
        own = found.maps[b].double()[:, places][:, :, places]
        tokens = found.view.tokens[b][places].tolist()
        for i in range(n):
            row = own[head, i].tolist()
            add = lambda name, value: totals.setdefault(name, []).append(value)  # noqa: E731
            seen = i + 1 if found.view.causal else n
            add("entropy", -sum(w * math.log(w) for w in row if w > 0))
            add("distance", sum(w * abs(j - i) for j, w in enumerate(row)))
            for name, wanted in (("next", i + 1), ("prev", i - 1), ("first", 0), ("self", i)):
                if 0 <= wanted < seen:
                    add(name, row[wanted])
                    add(f"{name}_chance", 1 / seen)
            for name, symbol in (("delim", 1), ("period", 2)):
                if symbol in tokens:
                    add(name, sum(w for w, t in zip(row, tokens, strict=True) if t == symbol))
                    add(f"{name}_chance", tokens[:seen].count(symbol) / seen)
            for other in range(H):
                if other == head:
                    continue
                q = own[other, i].tolist()
                js = 0.0
                for x, y in zip(row, q, strict=True):
                    m = (x + y) / 2
                    js += sum(z / 2 * math.log(z / m) for z in (x, y) if z > 0)
                add("similarity", 1 - js / math.log(2))
    means = {name: sum(values) / len(values) for name, values in totals.items()}
    return means | {"sentences": len(LENGTHS)}


@pytest.mark.parametrize(("kind", "left"), list(product(["softmax", "doubly"], [False, True])))
def test_numbers_of_heads_equal_the_naive_twin(kind, left):
    found = heard(kind, left=left)
    collected = HeadStatistics({"encoder": DICTIONARY})
    collected.add(found)
    for row in collected.rows():
        expected = naive(found, row["head"])
        assert row.keys() == {"site", "layer", "head", *expected}
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, abs=1e-5), name


def test_the_chance_level_of_a_decoder_counts_the_keys_that_are_seen():
    found = heard(site="decoder")
    (row, *_) = rows_of(HeadStatistics({"decoder": DICTIONARY}), [found])
    expected = naive(found, 0)
    for name in ("prev_chance", "first_chance", "self_chance", "sentences"):
        assert row[name] == pytest.approx(expected[name]), name
    assert "next_chance" not in row


def test_pictures_of_heads_name_chance_and_sentences():
    rows = rows_of(HeadStatistics({"encoder": DICTIONARY}), [heard()])
    figure = heads.draw([{"model": "m", **row} for row in rows], "encoder")
    titles = [axes.get_title() for axes in figure.axes]
    assert f"pattern next, chance {rows[0]['next_chance']:.2f}" in titles and "entropy" in titles
    assert not any("_chance" in title or "sentences" in title for title in titles)
    (part,) = figure.subfigs
    assert part.get_suptitle() == "m: heads of encoder self-attention, 3 sentences"


def rows_of(collector, batches) -> list[dict]:
    for batch in batches:
        collector.add(batch)
    return collector.rows()


def apart(found: LayerAttention) -> list[LayerAttention]:
    """Each sentence in a batch of its own, without its padding."""
    batches = []
    for b in range(B):
        keep = found.view.keys[b].nonzero().squeeze(1)
        real = torch.ones(1, len(keep), dtype=torch.bool)
        maps = found.maps[b : b + 1][:, :, keep][..., keep]
        view = View(found.view.tokens[b : b + 1, keep], real, real, found.view.causal)
        batches.append(LayerAttention(found.site, found.layer, maps, view))
    return batches


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("make", [ColumnSums, lambda: HeadStatistics({"encoder": DICTIONARY})])
def test_batching_and_padding_change_nothing(make, left):
    found = heard(left=left)
    together, alone = rows_of(make(), [found]), rows_of(make(), apart(found))
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, nan_ok=True, abs=1e-6)


def test_worked_numbers():
    """Two keys, two queries; the second head is uniform."""
    maps = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]]])
    real = torch.ones(1, 2, dtype=torch.bool)
    found = LayerAttention("encoder", 0, maps, View(torch.tensor([[3, 1]]), real, real))
    (first, second) = rows_of(HeadStatistics({"encoder": DICTIONARY}), [found])
    assert first["entropy"] == pytest.approx(math.log(2) / 2)
    assert second["entropy"] == pytest.approx(math.log(2))
    assert (first["distance"], second["distance"]) == (0.25, 0.5)
    assert (first["prev"], first["next"], first["first"], first["self"]) == (0.5, 0, 0.75, 0.75)
    assert first["delim"] == 0.25 and math.isnan(first["period"])
    # rows (1, 0) and (1/2, 1/2): JS = log 2 - 3/4 log 3 + ... = 0.2157615543
    alike = (1 - 0.2157615543 / math.log(2) + 1) / 2
    assert first["similarity"] == second["similarity"] == pytest.approx(alike)
    sums = ColumnSums()
    (first, _) = rows_of(sums, [found])
    assert first["least_times_keys"] == 1 and first["below_bound"] == 0  # sums 3/2 and 1/2


def test_column_sums_equal_the_naive_twin():
    found = heard(scale=12.0)
    sums = ColumnSums(epsilon=1e-3)
    sums.add(found)
    histograms, edges = sums.histograms()["encoder", 0], sums.edges()
    for row in sums.rows():
        logs, bounds = [], []
        for b, n in enumerate(LENGTHS):
            own = found.maps[b, row["head"], :n, :n].double()
            for j in range(n):
                total = sum(float(own[i, j]) for i in range(n))
                logs.append(math.log(total))
                bounds.append(n * total)
        assert row["keys"] == sum(LENGTHS) == len(logs)
        assert row["explained_away"] == pytest.approx(sum(x < math.log(1e-3) for x in logs) / 12)
        assert row["least_times_keys"] == pytest.approx(min(bounds))
        assert row["below_bound"] == pytest.approx(sum(x < 1 - 1e-4 for x in bounds) / 12)
        for shares, low, high in zip(histograms[row["head"]], edges, edges[1:], strict=False):
            inside = sum(low <= max(x, sums.LOWEST) < high for x in logs)
            assert float(shares) == pytest.approx(inside / 12)
    assert any(row["explained_away"] > 0 for row in sums.rows())


@pytest.mark.parametrize(("kind", "holds"), [("doubly", True), ("softmax", False)])
def test_theorem_2(kind, holds):
    """Doubly-normalised attention gives every key at least 1/S; softmax does not."""
    rows = [row for seed in range(5) for row in rows_of(ColumnSums(), [heard(kind, seed=seed)])]
    assert all(row["least_times_keys"] >= 1 - 1e-6 for row in rows) == holds
    assert all(row["below_bound"] == 0 for row in rows) == holds


def test_a_key_that_nobody_sees_is_counted():
    """Weights that are 0 in single precision have no logarithm."""
    real = torch.ones(1, 2, dtype=torch.bool)
    maps = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    sums = ColumnSums()
    (row,) = rows_of(
        sums, [LayerAttention("encoder", 0, maps, View(torch.zeros(1, 2), real, real))]
    )
    assert row["explained_away"] == 0.5 and row["least_times_keys"] == 0
    assert sums.histograms()["encoder", 0][0, 0] == 0.5
    assert sums.range("encoder") == (sums.LOWEST, 1.0)


def test_weights_below_0():
    """As raw hybrid attention may have: no number fails, sums below 0 count as the least."""
    real = torch.ones(1, 2, dtype=torch.bool)
    maps = torch.tensor([[[[1.5, -0.5], [1.0, 0.0]], [[0.5, 0.5], [0.5, 0.5]]]])
    found = LayerAttention("encoder", 0, maps, View(torch.tensor([[3, 1]]), real, real))
    sums = ColumnSums()
    (first, _) = rows_of(sums, [found])
    assert first["explained_away"] == 0.5 and first["least_times_keys"] == -1
    assert sums.histograms()["encoder", 0][0].sum() == 1
    (first, _) = rows_of(HeadStatistics({"encoder": DICTIONARY}), [found])
    assert math.isfinite(first["entropy"]) and math.isfinite(first["similarity"])


def test_rows_of_any_sum_are_taken_as_shares():
    """A sink, a norm or a head that talks scales a row; what it looks at does not change."""
    real = torch.ones(1, 3, dtype=torch.bool)
    view = View(torch.tensor([[3, 4, 1]]), real, real)
    maps = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])[None, :, None].repeat(1, 1, 3, 1)
    scale = torch.tensor([0.001, 1.6])[:, None, None]
    rows = []
    for each in (maps, maps * scale, maps * scale - torch.tensor([0.0, 0.1, 0.0]) * (maps == 0)):
        collected = HeadStatistics({"encoder": DICTIONARY})
        rows.append(rows_of(collected, [LayerAttention("encoder", 0, each, view)]))
    for one, scaled, with_negative in zip(*rows, strict=True):
        assert one == pytest.approx(scaled, nan_ok=True, abs=1e-6)
        assert one == pytest.approx(with_negative, nan_ok=True, abs=1e-6)
    assert rows[0][0]["similarity"] == pytest.approx(0, abs=1e-6)  # they share no key
    assert statistics.as_shares(torch.zeros(2, 3)).eq(0).all()  # not nan


def test_shares_of_keys_count_keys_not_heads(capsys):
    """A head with 100 keys and one with 9,900: 100 of 10,000 are explained away."""
    each = {"model": "m", "site": "encoder", "below_bound": 0.5, "least_times_keys": 0}
    counts = [{"keys": 100, "explained_away": 1.0}, {"keys": 9900, "explained_away": 0.0}]
    columns.print_summary([each | count for count in counts], "encoder")
    assert "m: 1.00% of the keys explained away, 50.00% get less" in capsys.readouterr().out


def test_weights_of_each_site_have_a_line_of_their_own():
    values = {"encoder": 1.5, "decoder": 0.5, "cross": 1.9}
    found = [
        weights.Weight("m", "m.pt", "gate", site, layer, head, update, value)
        for site, value in values.items()
        for layer in (0, 1)
        for head in (0, 1)
        for update in (None, 1, 2)
    ]
    over, by_layer = weights.draw(found, "gate").axes
    lines = {line.get_label(): set(line.get_ydata()) for line in by_layer.lines}
    assert lines == {SITES[site]: {value} for site, value in values.items()}
    styles = {
        line.get_ydata()[0]: line.get_linestyle() for line in over.lines if len(line.get_ydata())
    }
    assert len({styles[value] for value in values.values()}) == 3
    assert {SITES[site] for site in values} < {text.get_text() for text in over.get_legend().texts}


def test_a_pattern_that_weighs_keys_wants_those_with_a_weight():
    found = heard()
    weights = torch.zeros(B, T, T)
    weights[:, :, 0], weights[:, 2, 1] = 0.75, 0.25
    spread = PATTERNS["first"]._replace(rows=lambda view: weights)
    share, wanted = statistics.pattern_share(found.maps, spread, found.view)
    expected = found.maps[..., 0].clone()
    expected[:, :, 2] += found.maps[:, :, 2, 1]
    torch.testing.assert_close(share, expected)
    assert wanted.all()


def test_patterns_of_a_site():
    assert statistics.patterns_at("decoder") == ["prev", "first", "self"]
    assert statistics.patterns_at("cross") == [
        *("next", "prev", "first", "diagonal"),
        *[name for name in PATTERNS if name in ("period", "delim")],
    ]


# The verbs.


@pytest.fixture
def streamed(hybrid_run, data_bin, tmp_path):
    def run(verb, *args, checkpoints=1):
        files = [str(hybrid_run / "checkpoint_last.pt")] * checkpoints
        cli.main([verb, *files, "--data", str(data_bin), "--out", str(tmp_path / "out"), *args])
        return tmp_path / "out"

    return run


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def read_csv(path) -> list[dict]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_columns(streamed, capsys, monkeypatch):
    figures = []
    monkeypatch.setattr(columns, "save", lambda *given: figures.append(given[0]) or save(*given))
    out = streamed("columns", "--split", "test", "--limit", "20", "--epsilon", "0.9")
    assert names(out) == ["column_sums.csv", "column_sums.json", "column_sums.png"]
    rows = read_csv(out / "column_sums.csv")
    assert [row["site"] for row in rows] == ["cross"] * 6 + ["decoder"] * 6 + ["encoder"] * 16
    read = json.loads((out / "column_sums.json").read_text("utf-8"))
    assert read["epsilon"] == 0.9 and read["split"] == "test"
    assert len(read["histograms"]["heads"]) == 10  # site and layer
    assert all(
        sum(head) == pytest.approx(1)
        for each in read["histograms"]["heads"]
        for head in each["shares"]
    )
    assert [str(row["explained_away"]) for row in read["rows"]] == [
        r["explained_away"] for r in rows
    ]
    said = capsys.readouterr().out
    assert "0.00% get less than 1/S" in said and "over 16 heads of encoder self-attention" in said
    (figure,) = figures
    assert figure.axes[0].get_title().endswith("\nencoder self-attention")
    ((legend,), label) = figure.legends, figure.axes[-1].xaxis.label
    assert label.get_text() == "log of what a key gets from all queries"
    assert not legend.get_window_extent().overlaps(label.get_window_extent())


def test_heads(streamed):
    out = streamed("heads", "--limit", "10", "--max-tokens", "100", checkpoints=2)
    assert names(out) == [
        *("heads.csv", "heads.json", "heads_cross.png", "heads_decoder.png", "heads_encoder.png")
    ]
    rows = read_csv(out / "heads.csv")
    assert len(rows) == 2 * 28 and {row["similarity"] != "" for row in rows} == {True}


@pytest.mark.slow
def test_analyse(streamed, capsys):
    out = streamed("analyse", "--limit", "3", "--sentence", "ein mann .", "--sentence", "ein hund")
    assert names(out) == sorted(
        [
            *("column_sums.csv", "column_sums.json", "heads.csv", "heads.json", "maps.html"),
            *("maps_0.json", "maps_1.json"),
            *("weights.csv", "weights.json", "weights_u.png", "weights_gate.png"),
            *(f"column_sums_{site}.png" for site in ("encoder", "decoder", "cross")),
            *(f"heads_{site}.png" for site in ("encoder", "decoder", "cross")),
            *(f"maps_{i}_{site}.png" for i in (0, 1) for site in ("encoder", "decoder", "cross")),
        ]
    )
    assert (out / "maps.html").read_text("utf-8").count("data-maps>") == 2
    assert "3 sentences of valid" in capsys.readouterr().out
    (out / "heads_mine.png").touch()
    again = streamed("analyse", "--limit", "3", "--sentences", "0")
    assert names(again) == sorted(
        {name for name in names(out) if not name.startswith("maps")} | {"heads_mine.png"}
    )


def test_analyse_without_maps(streamed):
    out = streamed("analyse", "--limit", "3", "--sentences", "0")
    assert "heads.csv" in names(out) and not [name for name in names(out) if "maps" in name]


def test_a_split_that_the_model_cannot_read():
    inspector = SimpleNamespace(batches=lambda *_: [], checkpoint="model.pt")
    with pytest.raises(UsageError, match="valid has no sentence that model.pt can read; give"):
        statistics.collect(inspector, Namespace(split="valid", limit=None, max_tokens=9))


def test_weights(streamed, hybrid_run, data_bin, tmp_path):
    out = tmp_path / "weights"
    args = ["weights", str(hybrid_run), "--data", str(data_bin), "--out", str(out)]
    cli.main(args)
    assert names(out) == ["weights.csv", "weights.json", "weights_gate.png", "weights_u.png"]
    rows = read_csv(out / "weights.csv")
    logged = [row for row in rows if row["update"]]
    assert {row["update"] for row in logged} == {"1", "2", "3"}
    assert {row["model"] for row in rows} == {"hna"}
    state = torch.load(hybrid_run / "checkpoint_last.pt", weights_only=False)["model"]
    for row in rows:
        if row["update"]:
            continue
        prefix = f"encoder.layers.{row['layer']}.self_attn."
        if row["kind"] == "gate":
            expected = 1 + state[f"{prefix}gate"][int(row["head"])]
        else:
            expected = state[f"{prefix}groups.0.normaliser.offset"][int(row["head"])].sigmoid()
        assert float(row["value"]) == pytest.approx(float(expected))
    means = [float(row["value"]) for row in logged if row["kind"] == "u" and row["update"] == "1"]
    assert means == [0.5] * 4  # logged before the first step
    assert {row["run"] for row in logged} == {str(hybrid_run)}


def test_checkpoints_of_a_run_are_joined_over_its_updates(hybrid_run, data_bin, tmp_path):
    last = hybrid_run / "checkpoint_last.pt"
    state = torch.load(last, weights_only=False)
    state["optimizer_history"][-1]["num_updates"] = 1
    for name, value in state["model"].items():
        if name.endswith("normaliser.offset"):
            value.fill_(2.0)
    files = [tmp_path / "run" / name for name in ("checkpoint_last.pt", "checkpoint_1_1.pt")]
    files[0].parent.mkdir()
    shutil.copy(last, files[0])
    torch.save(state, files[1])
    found = weights.join_checkpoints(files, data_bin)
    assert {weight.model for weight in found} == {"transformer_hna_tiny, run"}
    u = [weight for weight in found if weight.kind == "u"]
    early, late, by_layer = ([w for w in u if w.update == update] for update in (1, 3, None))
    assert len(early) == len(late) == len(by_layer) == 16  # 4 layers of 4 heads
    assert {weight.run for weight in by_layer} == {str(files[0])}
    share = float(torch.tensor(2.0).sigmoid())
    assert [weight.value for weight in early] == pytest.approx([share] * 16)
    assert [w.value for w in late] == [w.value for w in by_layer]
    first = weights.draw(u, "u").axes[0]
    lines = [line for line in first.get_lines() if len(line.get_xdata())]
    assert len(lines) == 16 and list(lines[0].get_xdata()) == [1, 3]


def test_checkpoints_of_two_trainings_of_one_name_are_two_models(hybrid_run, data_bin, tmp_path):
    files = [tmp_path / study / "hna" / "seed-1" / "checkpoint_last.pt" for study in "ab"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.symlink_to(hybrid_run / "checkpoint_last.pt")
    out = tmp_path / "weights"
    cli.main(["weights", *map(str, files), "--data", str(data_bin), "--out", str(out)])
    models = {row["model"] for row in read_csv(out / "weights.csv")}
    assert models == {f"transformer_hna_tiny, {file}" for file in files}


def test_a_log_of_epochs_alone_has_weights(hybrid_run, tmp_path):
    lines = (hybrid_run / "train.log").read_text("utf-8").split("\n")
    (tmp_path / "train.log").write_text("\n".join(x for x in lines if "train_inner" not in x))
    every, epochs = weights.read_logged(hybrid_run, "hna"), weights.read_logged(tmp_path, "hna")
    assert {weight.update for weight in every} == {1, 2, 3} and epochs
    assert {weight.update for weight in epochs} < {1, 2, 3}


@pytest.mark.slow
def test_the_full_stop_of_a_byte_level_vocabulary(encoder_data, tmp_path):
    from conftest import train_encoder

    checkpoint = train_encoder(encoder_data, "roberta_una_tiny", tmp_path / "run")
    out = tmp_path / "out"
    cli.main(["heads", str(checkpoint), "--split", "valid", "--limit", "20", "--out", str(out)])
    assert all(0 < float(row["period"]) < 1 for row in read_csv(out / "heads.csv"))


@pytest.mark.parametrize(
    ("verb", "change", "said"),
    [
        ("columns", ["--limit", "0"], "--limit is 0"),
        ("columns", ["--max-tokens", "0"], "--max-tokens is 0"),
        ("columns", ["--epsilon", "0"], "--epsilon is 0"),
        ("heads", ["--split", "dev"], "no subset dev"),
        ("analyse", ["--sentence", "ein " * 1024], "1025 tokens"),
        ("analyse", ["--sentence", "ein mann .", "--split", "dev"], "no subset dev"),
        ("analyse", ["--max-tokens", "8"], "--max-tokens is 8 and valid has sentences of "),
        ("analyse", ["--sentences", "-1"], "--sentences is -1"),
        ("analyse", ["--sentences", "1000"], "--sentences is 1000 and valid has 100; give fewer"),
        ("analyse", ["--sentences", "2", "--sentence", "ein"], "--sentences 2 is of a split"),
        ("analyse", ["--tokens", "0"], "--tokens is 0"),
        ("analyse", ["--out", "/dev/null/x"], "/dev/null is a file"),
    ],
)
def test_what_cannot_be_analysed(streamed, tmp_path, verb, change, said):
    with pytest.raises(UsageError, match=said):
        streamed(verb, *change)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("verb", ["columns", "heads", "map", "probe"])
def test_all_checkpoints_are_looked_for_before_one_is_read(tmp_path, verb):
    (tmp_path / "none.pt").touch()
    command = [verb, str(tmp_path / "none.pt"), str(tmp_path / "missing.pt")]
    out = tmp_path / ("out.png" if verb == "map" else "out")
    command += ["--out", str(out), *(["--coreference", "x"] if verb == "probe" else [])]
    with pytest.raises(UsageError, match="missing.pt is not there; give the path of a checkpoint"):
        cli.main(command)


@pytest.mark.slow
def test_a_model_without_such_weights(encoder_data, tmp_path):
    from conftest import train_encoder

    checkpoint = train_encoder(encoder_data, "roberta_una_tiny", tmp_path / "run")
    with pytest.raises(UsageError, match="has hybrid weights or static gates"):
        cli.main(["weights", str(checkpoint), "--out", str(tmp_path / "out")])
    cli.main(["analyse", str(checkpoint), "--limit", "5", "--out", str(tmp_path / "out")])
    assert "column_sums_encoder.png" in names(tmp_path / "out")
    with pytest.raises(UsageError, match="has no cross-attention; give another --site"):
        args = ["columns", str(checkpoint), "--limit", "5", "--site", "cross"]
        cli.main([*args, "--out", str(tmp_path / "other")])
