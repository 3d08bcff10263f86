"""The five roles against worked sentences and a naive twin; their heads in a model; head gates."""

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import build_model
from mechanism_cases import Case
from omegaconf import OmegaConf
from worked_sentence import HEADS, IDF, RELATIONS, make_sentence

from fairseq_ext.attention import Attention, AttentionRecorder, HeadGroup, Inputs, build_normaliser
from fairseq_ext.attention import normalisers as softmax_module
from fairseq_ext.attention.masks import DEFAULT_MASKS
from fairseq_ext.data.pieces import read_pieces
from fairseq_ext.data.symbols import SymbolTable
from fairseq_ext.errors import UsageError
from fairseq_ext.mechanisms.gaussian import build_gaussian_heads
from fairseq_ext.mechanisms.guidance.plan import find_guidable_heads
from fairseq_ext.mechanisms.head_gates import build_static_gate
from fairseq_ext.mechanisms.kernels import doubly_cpu
from fairseq_ext.mechanisms.roles.role_masks import (
    NEVER_RARE,
    NO_WORD,
    ROLES,
    RoleMask,
    TokenFeatures,
    allowed_keys,
)
from fairseq_ext.mechanisms.second_pass.passes import MagnitudePass, SecondPass
from fairseq_ext.training.training_checks import check_empty_rows


def masked_heads(module, x, masks):
    """Attention whose head h sees masks[h] [B, T, S] alone; x [T, B, C]."""
    size, out = x.size(-1) // len(masks), []
    for head, mask in enumerate(masks):
        own = slice(head * size, (head + 1) * size)
        q, k, v = (
            p(x).transpose(0, 1)[..., own] for p in (module.q_proj, module.k_proj, module.v_proj)
        )
        scores = (q @ k.transpose(1, 2)) / size**0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        weights = torch.where(mask.any(-1, keepdim=True), weights, 0)
        out.append((weights @ v) * (1 + module.gate[head]))
    return module.out_proj(torch.cat(out, -1)).transpose(0, 1)


CASES = [
    Case(
        "roles",
        "roles",
        models={
            "roles": {"encoder_roles": "rare,separator,relative"},
            "roles as in the code": {
                "encoder_roles": "rare,none/separator/relative/none,relative,rare",
                "role_definitions": "code",
                "head_gate": True,
            },
            "roles and DNA": {"encoder_roles": "rare,relative", "encoder_normaliser": "doubly"},
            "roles and Gaussians": {"encoder_roles": "rare,relative"}
            | {"encoder_gaussian_heads": "2"},
        },
        flags="--encoder-roles rare,relative",
        paper=True,
        neutral={"encoder_roles": "none,none"},
        encoder_only=True,
    )
]
PAIR = "rare", "separator", "relative"


def looks(role, view, definitions="paper"):
    """For each real row the real positions that it may look at, counted from the first one."""
    real = view.real[0]
    found = allowed_keys(role, view, definitions)[0]
    assert not found[real][:, ~real].any()
    return [set(row.nonzero().flatten().tolist()) for row in found[real][:, real]]


DEPENDENCY = [{0}, {1, 3}, {2, 3}, {1, 2, 3, 5}, {4, 5}, {3, 4, 5, 6, 7}, {5, 6}, {5, 7}, {8}]
WORKED = {
    "rare": [{3}] * 9,
    "separator": [{0, 7, 8}] * 9,
    "major": [{2, 3, 5, 6}] * 9,
    "relative": [{0, 1}, *({i - 1, i, i + 1} for i in range(1, 8)), {7, 8}],
    "dependency": DEPENDENCY,
    "none": [set(range(9))] * 9,
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("padding", "left"), [(0, False), (2, False), (3, True)])
def test_worked_sentence(role, padding, left):
    """papers.md, section 3."""
    assert looks(role, make_sentence(padding=padding, left=left)) == WORKED[role]


CODE = {
    "rare": [{3, 6}] * 9,
    "separator": [{0, 8}] * 9,
    "major": [{0, 1, 2, 3, 5, 6, 8}] * 9,
    # its row 7 sees a pad, which ours never do
    "relative": [{0, 1, 2}, {0, 1, 2, 3}, *({*range(i - 2, i + 3)} for i in range(2, 7))]
    + [{5, 6, 7, 8}, {6, 7, 8}],
    "dependency": DEPENDENCY,
}
CUT = {
    "rare": [{2, 3}] * 5,
    "separator": [{0}] * 5,
    "dependency": [{0}, {1, 3}, {2, 3}, {1, 2, 3}, {4}],
    "major": [{0, 1, 2, 3}] * 5,
    "relative": [{0, 1, 2}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {1, 2, 3, 4}, {2, 3, 4}],
}
SHORT = [*IDF[:-1], NEVER_RARE]  # a symbol is never rare there


@pytest.mark.parametrize("role", CODE)
def test_worked_sentence_of_the_code(role):
    """asa_and_roles.md, B8."""
    assert looks(role, make_sentence((), SHORT), "code") == CODE[role]
    assert looks(role, make_sentence((), SHORT, cut=5), "code") == CUT[role]


def read(text, count=lambda symbol: 1, definitions="paper", around=True):
    """`Sentences` of a text of symbols, in a dictionary that has counted each so often."""
    words = Dictionary()
    for symbol in dict.fromkeys(text.split()):
        words.add_symbol(symbol, n=count(symbol) or 0)
    tokens = [words.index(symbol) for symbol in text.split()] + [words.eos()]
    tokens = [words.bos(), *tokens] if around else tokens
    return SymbolTable(words, definitions)(torch.tensor([tokens, [words.pad()] * len(tokens)]))


def test_few_words_of_the_code_leave_the_first_token():
    """B8: of "x 7 ," none can be rare; "Wow ! ok . ..." has one separator within; 35 words."""
    assert looks("rare", read("x 7 ,", definitions="code"), "code") == [{0}] * 5
    assert looks("rare", read("long 7 ,", definitions="code"), "code") == [{0, 1}] * 5
    found = looks("separator", read("Wow ! ok . ...", definitions="code"), "code")
    assert found == [{0, 4, 6}] * 7
    many = " ".join(f"word{n}" for n in range(35))
    assert [len(row) for row in looks("rare", read(many, definitions="code"), "code")] == [3] * 37


def test_share_of_rare_words():
    """A tenth, rounded up; of equally rare ones the first; an unknown word is the rarest."""
    for words, rare in ((1, 1), (10, 1), (11, 2), (20, 2), (21, 3)):
        text = " ".join(f"word{n}" for n in range(words))
        assert looks("rare", read(text, around=False))[0] == set(range(rare))
    view = read("a b c d", {"a": 9, "b": 3, "c": 2, "d": 5}.get, around=False)
    assert looks("rare", view) == [{2}] * 5
    words = Dictionary()
    known = words.add_symbol("known", n=1)
    tokens = torch.tensor([[words.unk(), known, words.unk(), known, words.eos()]])
    assert looks("rare", SymbolTable(words, "paper")(tokens)) == [{0}] * 5
    assert looks("rare", SymbolTable(words, "code")(tokens), "code") == [{0, 2}] * 5


@pytest.mark.parametrize(
    ("text", "rare"),
    [
        ("the dog ran newone sat newtwo", {4, 6}),
        ("the dog saw newone in the park with newtwo", {8, 9}),  # four unseen ones, later ones win
    ],
)
def test_unseen_words_are_the_rarest_of_the_code(text, rare):
    """The code's own masks, with its counts of training text and of the text itself, are ours."""
    training = ["the dog ran in the park", "the dog sat in the sun", "the cat ran"]
    words, counted = Dictionary(), " ".join([*training, "a dog and a cat sat"]).split()
    for word in dict.fromkeys(counted):
        words.add_symbol(word, n=counted.count(word))
    tokens = [words.bos(), *map(words.index, text.split()), words.eos()]
    view = SymbolTable(words, "code")(torch.tensor([tokens]))
    assert looks("rare", view, "code") == [rare] * len(tokens)


def test_rare_words_with_a_least_count():
    """The rarest piece of a word decides; unknown words were never counted."""
    words = Dictionary()
    counts = {"▁a": 9, "▁b": 1, "▁c": 3, "▁d": 20, "x": 2, "y": 5}
    tokens = [words.add_symbol(piece, n=count) for piece, count in counts.items()]
    a, b, c, d, x, y = tokens
    tokens = torch.tensor([[b, c, a, x, d, y, words.unk(), words.eos()]])  # b c ax dy ?
    for least, rare in ((0, {6}), (1, {0}), (2, {2, 3}), (3, {1}), (4, {4, 5}), (6, None)):
        found = looks("rare", SymbolTable(words, "paper", least)(tokens))
        assert found == ([rare] * 8 if rare else [{at} for at in range(8)])


def test_rare_words_are_the_same_in_16_bits():
    counts = {"a": 70_000, "b": 69_999, "c": 2_050, "d": 2_049, "e": 300, "f": 299}
    words = Dictionary()
    tokens = torch.tensor([[words.add_symbol(word, n=count) for word, count in counts.items()]])
    for end, rare in ((2, 1), (4, 3), (6, 5)):
        for symbols in (SymbolTable(words, "paper").half(), SymbolTable(words, "paper").bfloat16()):
            assert looks("rare", symbols(tokens[:, :end]))[0] == {rare}


def test_a_masked_word_is_a_word_and_never_rare():
    view = read("▁dog <mask> s ▁runs", {"▁dog": 1, "s": 9, "▁runs": 5}.get, around=False)
    assert looks("rare", view)[0] == {0}
    assert view.begins[0].tolist() == [True, True, True, True, False]


@pytest.mark.parametrize("tag", ["__en__", "[en_XX]"])
def test_the_language_of_a_sentence_is_never_rare(tag):
    counts = {tag: 1, "__main__": 3}
    view = read(f"{tag} dog runs __main__", lambda word: counts.get(word, 9), around=False)
    assert looks("rare", view)[0] == {3}


SPLIT = {
    "The quick fox never cha@@ sed dogs !": [1, 2, 3, 4, 5, 5, 6, 7],
    "The qui@@ ck f@@ o@@ x never chased dogs !": [1, 2, 2, 3, 3, 3, 4, 5, 6, 7],
    "▁The ▁quick ▁f ox ▁never ▁cha sed ▁dogs ▁!": [1, 2, 3, 3, 4, 5, 5, 6, 7],
    "The quick fo ##x never chased do ##gs !": [1, 2, 3, 3, 4, 5, 6, 6, 7],
    "ĠThe Ġquick Ġf ox Ġnever Ġchased Ġdogs Ġ!": [1, 2, 3, 3, 4, 5, 6, 7],
}


@pytest.mark.parametrize("text", SPLIT)
def test_worked_sentence_in_pieces(text):
    """What holds of a word holds of all its pieces; those of one word look at each other."""
    words = [0, *SPLIT[text], 8]
    fox, last = {place for place, word in enumerate(words) if word == 3}, len(words) - 1
    view = read(text, lambda symbol: 1 if symbol.strip("▁Ġ").startswith("f") else 5)
    parse = [
        (NO_WORD, NO_WORD, 0) if w in (0, 8) else (w - 1, HEADS[w - 1] - 1, RELATIONS[w - 1])
        for w in words
    ]
    blank = torch.tensor((NO_WORD, NO_WORD, 0)).expand(len(words), -1)
    view = TokenFeatures(**{**vars(view), "parse": torch.stack([torch.tensor(parse), blank])})
    for role in ("dependency", "major"):
        wanted = [{p for p, w in enumerate(words) if w in WORKED[role][word]} for word in words]
        wanted[0], wanted[last] = (
            ({0}, {last}) if role == "dependency" else (wanted[0], wanted[last])
        )
        assert looks(role, view) == wanted
    assert looks("rare", view) == [fox] * len(words)
    assert looks("separator", view) == [{0, last - 1, last}] * len(words)


def test_a_symbol_within_a_word_does_not_separate():
    assert looks("separator", read("3@@ ,@@ 000 , x@@ y", around=False))[0] == {3, 6}


def test_marks_are_those_of_most_symbols():
    assert read_pieces(["@@", "a"])[1].ends_word
    assert read_pieces(["###", *map(str, range(200))])[0] == (b"###", True, True)
    assert not read_pieces(["a@@", "b@@", "b", "##"])[0].ends_word
    assert [piece.text for piece in read_pieces(["Ġa", "b", "ĠÃ¼", "Ã"])] == [
        b"a",
        b"b",
        "ü".encode(),
        b"\xc3",
    ]


@pytest.mark.parametrize("role", ["dependency", "major", "rare"])
def test_a_row_without_a_key_looks_at_itself(role):
    """No parse, no word: the diagonal, and nothing is added to other rows."""
    view = make_sentence(idf=[NEVER_RARE] * 7)
    view = TokenFeatures(
        **{**vars(view), "parse": torch.full_like(view.parse, NO_WORD) * torch.tensor([1, 1, 0])}
    )
    assert looks(role, view) == [{place} for place in range(9)]


def test_parsed_roles_need_parses():
    with pytest.raises(UsageError, match="the role major of the model needs parses"):
        allowed_keys("major", read("a b c"))


def attention(groups, gate=None):
    torch.manual_seed(2)
    return Attention(16, 4, site="encoder", groups=groups, gate=gate).double()


def softmax(n):
    return build_normaliser("softmax", n)


@pytest.mark.parametrize("heard", [(), (1,), (0, 3)])
@pytest.mark.parametrize("names", [PAIR, ("major", "dependency")])
def test_outputs_and_gradients_are_those_of_the_naive_twin(names, heard):
    """Whichever kernel computes it: observed heads are on another path."""
    view, n = make_sentence(), len(names)
    view = TokenFeatures(
        **{name: torch.cat([value, value.flip(1)]) for name, value in vars(view).items()}
    )
    roles = HeadGroup(n, normaliser=softmax(n), masks=(*DEFAULT_MASKS, RoleMask(names)))
    module = attention(
        [roles, HeadGroup(4 - n, normaliser=softmax(4 - n))], gate=build_static_gate(4, 16)
    )
    module.gate.data.normal_()
    x = torch.randn(11, 2, 16, dtype=torch.double, requires_grad=True)
    inputs = Inputs(
        ~view.real, recorder=AttentionRecorder(lambda site, layer: heard), token_features=view
    )
    masks = [allowed_keys(name, view) for name in names]
    masks += [view.real[:, None].expand(-1, 11, -1)] * (4 - n)
    wanted = masked_heads(module, x, masks) * view.real.T[..., None]
    found = module(x, x, x, inputs, need_weights=False)[0] * view.real.T[..., None]
    torch.testing.assert_close(found, wanted)
    leaves = [x, *module.parameters()]
    for a, b in zip(
        *(torch.autograd.grad(y.sin().sum(), leaves) for y in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(a, b)


def build(name="transformer_roles_tiny", annotated=False, **options):
    words = Dictionary()
    for place, word in enumerate(", the a fo@@ x dog runs .".split()):
        words.add_symbol(word, n=99 - place)
    task = Namespace(source_dictionary=words, target_dictionary=words, annotated=annotated)
    torch.manual_seed(3)
    return build_model(OmegaConf.create({"_name": name, "dropout": 0.0, **options}), task)


TOKENS = torch.tensor([[1, 5, 7, 8, 10, 11, 2], [5, 9, 10, 4, 6, 11, 2]])


def run(model, **options):
    with torch.no_grad():
        return model.eval()(TOKENS, None, TOKENS, **options)[0]


def test_models_differ_by_what_heads_see_alone():
    """The same parameters; without roles the same outputs; a role changes them, a gate does not."""
    plain = build("transformer_una_tiny")
    none = build(encoder_roles="none,none")
    assert none.encoder.symbols is None
    for model in (none, build(), build(head_gate=True)):
        theirs = model.state_dict()
        assert all(torch.equal(theirs[name], value) for name, value in plain.state_dict().items())
    torch.testing.assert_close(run(none), run(plain), atol=0, rtol=0)
    torch.testing.assert_close(run(build(encoder_roles="none", head_gate=True)), run(plain))
    assert (run(build()) - run(plain)).abs().max() > 1e-3
    dropped = build(encoder_roles="rare,none,relative")
    assert (run(dropped) - run(build())).abs().max() > 1e-4


@pytest.mark.parametrize("kind", ["softmax", "doubly", "hybrid", "sinkhorn"])
def test_maps_of_guided_heads_are_zero_elsewhere(kind):
    heard = AttentionRecorder(lambda site, layer: range(4) if site == "encoder" else ())
    roles = "relative,none/separator,relative/rare/none,relative"
    model = build(encoder_roles=roles, encoder_normaliser=kind)
    run(model, recorder=heard)
    view = model.encoder.symbols(TOKENS)
    places = {(0, 0): "relative", (1, 0): "separator", (1, 1): "relative", (2, 0): "rare"}
    for (layer, head), role in {**places, (3, 1): "relative"}.items():
        maps, real = heard.maps["encoder", layer][:, head], view.real
        closed = ~allowed_keys(role, view) & real[:, :, None]
        assert maps[closed].abs().max() == 0
        torch.testing.assert_close(maps.sum(-1), torch.ones(2, 7))
    assert heard.maps["encoder", 3][1, 0].min() > 0


@pytest.mark.parametrize(("definitions", "width"), [("paper", 32), ("code", 128)])
def test_the_released_code_scales_by_the_model_s_width(definitions, width):
    """All heads are scaled, with a role (the first one here) or without, fused or not."""
    options = {"encoder_roles": "relative", "role_definitions": definitions}
    model = build(**options)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    heard = AttentionRecorder(lambda site, layer: range(4) if site == "encoder" else ())
    states = model.encoder.eval()(TOKENS, return_all_hiddens=True, recorder=heard)
    x, layer = states["encoder_states"][1], model.encoder.layers[1].self_attn
    q, k = (p(x).view(7, 2, 4, 32) for p in (layer.q_proj, layer.k_proj))
    scores = torch.einsum("tbhd,sbhd->bhts", q, k) / width**0.5
    real = TOKENS.ne(1)[:, None, None]
    expected = scores.masked_fill(~real, -1e9)[:, 1:].softmax(-1)
    torch.testing.assert_close(heard.maps["encoder", 1][:, 1:], expected, rtol=1e-4, atol=1e-6)
    window = allowed_keys("relative", model.encoder.symbols(TOKENS), definitions)
    expected = scores[:, 0].masked_fill(~window, -1e9).softmax(-1)
    torch.testing.assert_close(heard.maps["encoder", 1][:, 0], expected, rtol=1e-4, atol=1e-6)
    unheard = model.encoder(TOKENS, return_all_hiddens=True)
    torch.testing.assert_close(states["encoder_out"], unheard["encoder_out"], rtol=1e-4, atol=1e-5)
    assert (definitions == "code") == ("query_factor=0.5" in repr(layer))


def test_the_log_tells_of_all_groups():
    """The hybrid weight of a layer is the mean over its heads, with roles and without."""
    model = build(encoder_roles="rare", encoder_normaliser="hybrid", hna_weight="raw")
    layer = model.encoder.layers[2].self_attn
    for group, u in zip(layer.groups, (0.1, 0.5), strict=True):
        group.normaliser.offset.data.fill_(u - group.normaliser.init)
    assert layer.statistics()["encoder2_u"]() == pytest.approx((0.1 + 3 * 0.5) / 4, abs=1e-4)


def test_head_gates_are_trained_logged_and_optional_in_checkpoints():
    model, plain = build(head_gate=True), build()
    model.load_state_dict(plain.state_dict())
    layer = model.encoder.layers[1].self_attn
    model(TOKENS, None, TOKENS)[0].square().sum().backward()
    assert layer.gate.grad.abs().min() > 0
    layer.gate.data[2] = 0.5
    assert layer.statistics()["encoder1_gate2"]() == 1.5
    assert plain.encoder.layers[1].self_attn.gate is None
    assert not any("gate" in name for name in plain.state_dict())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"encoder_roles": "rare,sep"}, ["--encoder-roles", "'sep'", "separator"]),
        ({"encoder_roles": "rare/rare"}, ["2 layers", "has 4"]),
        ({"encoder_roles": "rare,rare,rare,rare,rare"}, ["5 roles", "layer 0", "4 of its heads"]),
        (
            {"encoder_roles": "rare,none,relative", "encoder_gaussian_heads": "2"},
            ["3 roles", "2 of its heads"],
        ),
        (
            {"encoder_roles": "dependency,rare,major"},
            ["has dependency and major", "fairseq-ext annotate", "--task translation_roles"],
        ),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(UsageError) as refused:
        build(**options)
    assert all(word in str(refused.value) for word in said)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("symbols", "roles", "said"),
    [
        ("a:1 b:1 , madeupword0000:0", "rare", "no counts"),
        ("a:0 b:0 <mask>", "rare", "no counts"),
        ("15:9 7:8 12:5 ,", "rare", "numbers"),
        ("a b c", "separator", "none of , ; "),
    ],
)
def test_a_dictionary_that_does_not_say_it(symbols, roles, said):
    words = Dictionary()
    for symbol in symbols.split():
        name, _, count = symbol.partition(":")
        words.add_symbol(name, n=int(count or 1))
    task = Namespace(source_dictionary=words, target_dictionary=words)
    config = OmegaConf.create({"_name": "transformer_roles_tiny", "encoder_roles": roles})
    with pytest.raises(UsageError, match=said):
        build_model(config, task)


def test_guidance_takes_heads_without_a_role():
    model = build(encoder_roles="rare,relative/none,rare/none/relative")
    free = find_guidable_heads(model)["encoder"]
    assert free == {0: [2, 3], 1: [2, 3], 2: [0, 1, 2, 3], 3: [1, 2, 3]}


@pytest.mark.parametrize("kind", ["softmax", "doubly", "hybrid"])
def test_kernels_know_the_masks(kind, monkeypatch):
    """Long rows, where nothing makes a map unless somebody listens."""
    monkeypatch.setattr(softmax_module, "MIN_SCORES", 0)
    monkeypatch.setattr(doubly_cpu, "MIN_SCORES", 0)
    model = build(encoder_normaliser=kind, encoder_roles="relative,rare,separator").eval()
    tokens = torch.randint(4, 12, (2, 80))
    tokens[:, -1], tokens[1, :9] = 2, 1
    recorder = AttentionRecorder(lambda site, layer: range(4) if site == "encoder" else ())
    with torch.no_grad():
        fused = model.encoder(tokens)["encoder_out"][0]
        mapped = model.encoder(tokens, recorder=recorder)["encoder_out"][0]
    real = tokens.T != 1
    torch.testing.assert_close(fused[real], mapped[real], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_second_pass_has_the_masks_too(checkpointed):
    model = build(checkpoint_activations=checkpointed, attention_dropout=0.0)
    second = SecondPass(one_batch=True)
    encoded = model.train().encoder(TOKENS, second=second)["encoder_out"][0]
    one, other = encoded.chunk(2, 1)
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one, model.encoder(TOKENS)["encoder_out"][0])


def test_no_second_pass_looks_past_the_masks():
    check_empty_rows(build(), "unmasked")
    check_empty_rows(build("transformer_una_tiny"), "uniform")
    with pytest.raises(UsageError, match="--asa-empty-rows scores looks at all positions"):
        check_empty_rows(build(), "scores")


def test_magnitude_counts_what_a_head_may_look_at():
    """Of three neighbours two thirds are two: the third one keeps all the weight."""
    roles = HeadGroup(4, normaliser=softmax(4), masks=(*DEFAULT_MASKS, RoleMask(("relative",) * 4)))
    module, view = attention([roles]), make_sentence(padding=0)
    x = torch.randn(9, 1, 16, dtype=torch.double)
    second = MagnitudePass(2 / 3)
    inputs = Inputs(None, token_features=view, passes=(second,))
    module(x, x, x, inputs, need_weights=False)
    # 2 of 3 in each of seven rows, 1 of 2 in the first and the last one
    assert second.counts[0].units - second.counts[0].kept == 7 * 2 + 2 * 1


@pytest.mark.parametrize("padding", [0, 2])
def test_magnitude_counts_all_heads(padding):
    """Of groups the mean over their heads; hard-coded ones look the same in every sentence."""
    plain = [HeadGroup(2, normaliser=softmax(2)), HeadGroup(1, normaliser=softmax(1))]
    for groups, kept in [
        ([HeadGroup(4, normaliser=softmax(4))], 0.5),
        ([build_gaussian_heads([-1.0], [1.0]), *plain], 0.5),
    ]:
        module, x = attention(groups), torch.randn(8, 3, 16, dtype=torch.double)
        real = torch.arange(8).lt(8 - padding).expand(3, 8)
        second = MagnitudePass(0.5)
        module(x, x, x, Inputs(~real if padding else None, passes=(second,)), need_weights=False)
        units = torch.full((3,), (8.0 - padding) ** 2).double()
        torch.testing.assert_close(second.counts[0].units.double(), units)
        torch.testing.assert_close(second.counts[0].kept.double(), kept * units)


def test_annotated_models_build():
    model = build(annotated=True, encoder_roles="dependency,major")
    parse = torch.full((*TOKENS.shape, 3), NO_WORD)
    parse[..., 2] = 0
    alone = run(model, annotations=parse)
    parse[1, 0] = torch.tensor([0, 1, 0])
    parse[1, 1] = torch.tensor([1, NO_WORD, 0])
    assert (run(model, annotations=parse)[1] - alone[1]).abs().max() > 1e-4
    torch.testing.assert_close(run(model, annotations=parse)[0], alone[0])
