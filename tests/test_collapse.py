"""Mode collapse (DNA, Appendix E): simulation against formula, known values, pictures."""

import csv
import json
from itertools import product

import numpy as np
import pytest
import torch
from naive import normalise

from fairseq_ext import cli
from fairseq_ext.analysis.demos import collapse
from fairseq_ext.attention import build_normaliser
from fairseq_ext.errors import UsageError

KINDS = {"UNA": "softmax", "DNA": "doubly", "HNA": "hybrid"}


def normaliser(name):
    return build_normaliser(KINDS[name], 1, hna_init=0.5, hna_weight="raw")


def demo(name, sizes, deviation=0.5, kernel="gaussian", seed=0):
    """Distance of the centres at each step."""
    start = collapse.sample_clusters(sizes, deviation, seed)
    traced = collapse.trace(start, kernel, normaliser(name))
    return [collapse.distance(points, sizes[0]) for points in traced]


@pytest.mark.parametrize("name", ["UNA", "DNA"])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 5), (50, 5), (500, 50), (5, 200)])
@pytest.mark.parametrize("d", [0.5, 1.0, 2.0, 3.0])
def test_clusters_of_one_place_follow_the_equations(name, sizes, d):
    points = torch.tensor([[d]] * sizes[0] + [[0.0]] * sizes[1], dtype=torch.float64)
    _, after = collapse.trace(points, "gaussian", normaliser(name), steps=1)
    expected = collapse.EQUATIONS[name](d, sizes[0] / sizes[1])
    assert collapse.distance(after, sizes[0]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("d", "ratio", "una", "dna"),
    [
        (1, 1, 0.244919, 0.244919),
        (1, 2, 0.219166, 0.229444),
        (1, 5, 0.139793, 0.170023),
        (1, 10, 0.084352, 0.114948),
        (1, 100, 0.010191, 0.016399),
        (2, 1, 1.523188, 1.523188),
        (2, 2, 1.447214, 1.518346),
        (2, 5, 1.140129, 1.484982),
        (2, 10, 0.823146, 1.411642),
        (2, 20, 0.526120, 1.263958),
        (2, 100, 0.134910, 0.656232),
        (3, 5, 2.835483, 2.933993),
        (3, 10, 2.696722, 2.933732),
        (3, 100, 1.420862, 2.915562),
    ],
)
def test_known_values(d, ratio, una, dna):
    for equation, expected in zip(collapse.EQUATIONS.values(), (una, dna), strict=True):
        assert equation(d, ratio) == pytest.approx(expected, abs=1e-6)
        assert equation(d, 1 / ratio) == pytest.approx(expected, abs=1e-6)


def test_dna_is_never_closer_and_equal_only_at_the_ends():
    d, ratio = np.meshgrid(np.linspace(0.1, 5, 50), np.geomspace(1e-3, 1e3, 61))
    una, dna = collapse.una_distance(d, ratio), collapse.dna_distance(d, ratio)
    assert (dna >= una - 1e-15).all()
    between = (abs(np.log(ratio)) > 0.1) & (d < 4)
    assert (dna > una)[between].all()
    for at, of in ((d, 1.0), (0.0, ratio), (50.0, ratio)):  # w is 1 where d is 0, and 0 far away
        np.testing.assert_allclose(
            collapse.dna_distance(at, of), collapse.una_distance(at, of), rtol=1e-12
        )
    np.testing.assert_allclose(collapse.dna_distance(d, 1 / ratio), dna, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kernel", collapse.KERNELS)
def test_a_step_against_the_twin(name, kernel):
    points = collapse.sample_clusters((4, 2), 0.5, 1)
    n = len(points)
    scores = torch.zeros(n, n, dtype=torch.float64)
    for i, j in product(range(n), range(n)):
        x, y = points[i], points[j]
        scores[i, j] = x @ y if kernel == "dot" else -((x - y) ** 2).sum() / 2
    none = torch.zeros(n, n, dtype=torch.bool)
    expected = normalise(KINDS[name], scores, none, none[0]) @ points
    _, ours = collapse.trace(points, kernel, normaliser(name), steps=1)
    torch.testing.assert_close(ours, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_small_cluster_is_lost_by_una_and_kept_by_dna(seed):
    una, dna, hna = (demo(name, collapse.SIZES["unbalanced"], seed=seed) for name in KINDS)
    assert una[4] < 0.5 and dna[4] > 2.9 and una[0] == dna[0] > 3
    assert all(u < h < d for u, h, d in zip(una[1:], hna[1:], dna[1:], strict=True))
    una, dna = (demo(name, (500, 50), deviation=0.1, kernel="dot") for name in ("UNA", "DNA"))
    assert una[4] < 0.1 and dna[4] > 2.9


def test_clusters_of_one_size_fare_alike():
    una, dna = (demo(name, collapse.SIZES["balanced"]) for name in ("UNA", "DNA"))
    assert una == pytest.approx(dna, abs=0.05) and una[4] > 2.7


def test_points_are_around_their_centres():
    points = collapse.sample_clusters((30_000, 10_000), 0.5, 3)
    for part, centre in ((points[:30_000], (1.8, 0.7)), (points[30_000:], (-1.0, -1.0))):
        assert part.mean(0).tolist() == pytest.approx(centre, abs=0.02)
        assert part.std(0).tolist() == pytest.approx([0.5, 0.5], abs=0.02)
    assert not torch.equal(points, collapse.sample_clusters((30_000, 10_000), 0.5, 4))


def test_picture_of_points_has_a_row_each_and_the_steps_of_the_paper():
    traces = {
        n: collapse.trace(collapse.sample_clusters((6, 3), 0.5, 0), "dot", normaliser(n))
        for n in KINDS
    }
    apart = {name: [9.0, 8.0, 7.0, 6.0, 5.0] for name in KINDS}
    axes = collapse.draw(traces, apart, 6).axes
    assert [each.get_ylabel() for each in axes] == [x for n in KINDS for x in (n, "", "", "")]
    titles = [f"step {step}, distance {9 - step}.00" for step in (0, 1, 2, 4)]
    assert [each.get_title() for each in axes] == titles * 3
    for panel, (name, step) in zip(axes, product(KINDS, (0, 1, 2, 4)), strict=True):
        first, second = (dots.get_offsets().data for dots in panel.collections)
        np.testing.assert_array_equal(np.concatenate([first, second]), traces[name][step])
        assert len(first) == 6


def test_picture_of_distances():
    (axes,) = collapse.draw_distances().axes
    lines = {line.get_label(): line.get_xydata() for line in axes.get_lines()}
    assert len(lines) == 2 * len(collapse.DISTANCES)
    np.testing.assert_allclose(lines["UNA, from 2"][0], (1, 1.523188), atol=1e-6)
    np.testing.assert_allclose(lines["DNA, from 2"][-1], (100, 0.656232), atol=1e-6)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command(tmp_path, capsys):
    """Pictures, and beside each its numbers: distances are those of the points."""
    out = tmp_path / "new" / "folder"
    cli.main(["collapse", "--out", str(out), "--seed", "5", "--normalisers", "hybrid", "softmax"])
    names = {f"{n}.{end}" for n in collapse.SIZES for end in ("png", "csv", "json")}
    assert {each.name for each in out.iterdir()} == names | {"distances.png", "distances.csv"}
    found = json.loads((out / "unbalanced.json").read_text())
    assert (found["seed"], found["deviation"], found["sizes"]) == (5, 0.5, [500, 50])
    assert found["kernel"] == "gaussian" and found["hna_init"] == 0.5
    assert found["distances"]["UNA"] == demo("UNA", (500, 50), seed=5)
    last = [row for row in rows(out / "unbalanced.csv") if row["step"] == "4"]
    assert len(last) == 2 * 550
    for name, each in found["distances"].items():
        means = [
            np.mean([[float(r["x"]), float(r["y"])] for r in last
                     if (r["normaliser"], r["cluster"]) == (name, cluster)], axis=0)
            for cluster in "12"
        ]  # fmt: skip
        assert np.linalg.norm(means[0] - means[1]) == pytest.approx(each[4], abs=1e-9)
    said = capsys.readouterr().out.split("\n")
    assert said[1].startswith(f"unbalanced, UNA: distance {found['distances']['UNA'][0]:.3f} ")
    first = rows(out / "distances.csv")[0]
    assert [float(each) for each in first.values()] == pytest.approx(
        [1, 1, 0.244919, 0.244919], abs=1e-6
    )


def test_the_equations_are_of_the_gaussian_kernel(tmp_path):
    cli.main(["collapse", "--out", str(tmp_path), "--kernel", "dot", "--deviation", "0.1"])
    assert not list(tmp_path.glob("distances.*")) and (tmp_path / "balanced.png").exists()
    cli.main(["collapse", "--out", str(tmp_path), "--normalisers", "softmax"])
    assert len(list(tmp_path.glob("distances.*"))) == 2
    cli.main(["collapse", "--out", str(tmp_path), "--normalisers", "softmax", "--kernel", "dot"])
    assert not list(tmp_path.glob("distances.*"))


def test_what_cannot_be_drawn(tmp_path, capsys):
    for flags, says in (
        (["--deviation", "-1"], "--deviation is -1; give a number from 0 upwards"),
        (["--deviation", "nan"], "--deviation is nan; give"),
        (["--normalisers", "hybrid", "--hna-init", "2"], "--hna-init is 2; give"),
        (["--hna-init", "0.7"], "--hna-init 0.7 is of hybrid, which --normalisers has not"),
    ):
        with pytest.raises(UsageError, match=says):
            cli.main(["collapse", "--out", str(tmp_path / "out"), *flags])
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file; give a folder"):
        cli.main(["collapse", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit):
        cli.main(["collapse", "--out", str(tmp_path), "--normalisers", "triply"])
    assert "invalid choice: 'triply'" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
