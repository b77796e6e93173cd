"""The network: groups, per-token times, rotary positions, the present in every stream."""

from __future__ import annotations

import msgspec
import pytest
import torch

from leanwam.errors import InputError
from leanwam.models.reference.config import decode_config, load_preset, presets, reading_groups
from leanwam.models.reference.layers import fourier_features, rotary_table, rotate
from leanwam.models.reference.towers import stream_table, token_positions


def test_presets_and_groups():
    assert presets() == [
        "heads",
        "joint",
        "joint-drop-middle",
        "joint-loss-only",
        "joint-mae25",
        "joint-policy",
    ]
    assert reading_groups(load_preset("heads").streams) == (("video",), ("action",), ("proprio",))
    assert reading_groups(load_preset("joint").streams) == (("video", "action", "proprio"),)
    streams = load_preset("heads").streams
    assert {name: stream.shape for name, stream in streams.items()} == {
        "video": (2, 3, 7),
        "action": (16, 4),
        "proprio": (8, 4),
    }


def test_token_layout():
    layout = load_preset("joint").layout()
    assert (layout.t, layout.v, layout.h, layout.w, layout.n_tokens) == (3, 2, 4, 4, 96 + 16 + 9)
    assert load_preset("heads").layout().n_video == 9


def test_group_errors():
    streams = load_preset("heads").streams
    lopsided = {
        **streams,
        "proprio": msgspec.structs.replace(streams["proprio"], reads=("action", "proprio")),
    }
    with pytest.raises(InputError, match=r"streams.proprio.reads"):
        reading_groups(lopsided)
    data = msgspec.json.encode(load_preset("heads"))
    with pytest.raises(InputError, match=r"c.json: is no model configuration"):
        decode_config(data.replace(b'"width":128', b'"widht":128'), file="c.json")
    with pytest.raises(InputError, match=r"c.json: .*streams.action.reads: reads itself"):
        decode_config(data.replace(b'["video","action"]', b'["video","depth"]'), file="c.json")
    with pytest.raises(InputError, match="unknown preset; known: heads, joint"):
        load_preset("head")


def test_a_mixed_reading_is_two_groups():
    """Video alone, action and proprio together: the same code, another configuration."""
    streams = dict(load_preset("heads").streams)
    for name in ("action", "proprio"):
        streams[name] = msgspec.structs.replace(streams[name], reads=("video", "action", "proprio"))
    assert reading_groups(streams) == (("video",), ("action", "proprio"))


def test_a_mixed_reading_runs(wam):
    config = load_preset("heads")
    streams = dict(config.streams)
    for name in ("action", "proprio"):
        streams[name] = msgspec.structs.replace(streams[name], reads=("video", "action", "proprio"))
    model, given = wam.random_model("heads", streams=streams), wam.observation("heads")
    outputs = wam.one_step(model, given, {})
    assert torch.equal(outputs["video"], wam.one_step(model, given, {"action": 1.0})["video"])
    assert not torch.equal(outputs["proprio"], wam.one_step(model, given, {"action": 1.0})["proprio"])


def test_clean_tokens_have_time_zero_and_noisy_ones_the_streams(preset, wam):
    model, given = wam.random_model(preset), wam.observation(preset)
    conditions, samples = wam.conditions(model, given)
    time = torch.tensor([0.3, 0.6, 0.9])
    for name, stream in model.config.streams.items():
        made = conditions.inputs(name, samples[name], time)
        assert made.tokens.shape == (3, stream.n_tokens, stream.width)
        per_token = made.times.expand(3, -1) if made.level is None else made.times[:, made.level]
        per_token = per_token.expand(3, stream.n_tokens)
        assert torch.equal(per_token[:, : stream.n_clean_tokens], torch.zeros(3, stream.n_clean_tokens))
        assert torch.equal(
            per_token[:, stream.n_clean_tokens :],
            time[:, None].expand(3, -1)[:, :1].expand(3, stream.n_tokens - stream.n_clean_tokens),
        )


def test_each_stream_feels_its_own_time(preset, wam):
    model, given = wam.random_model(preset), wam.observation(preset)
    base = wam.one_step(model, given, {})
    for name in model.config.streams:
        assert not torch.equal(base[name], wam.one_step(model, given, {}, times={name: 0.1})[name])


def test_samples_do_not_mix(preset, wam):
    model, given = wam.random_model(preset), wam.observation(preset)
    base, other = wam.one_step(model, given, {}), wam.one_step(model, given, {"action": 1.0}, only_row=2)
    for name in base:
        assert torch.equal(base[name][:2], other[name][:2])
    assert not torch.equal(base["action"][2], other["action"][2])


def test_rotary_scores_depend_on_distances_alone():
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 32), torch.randn(1, 1, 1, 32)

    def score(at: list[float], to: list[float]) -> float:
        tables = [rotary_table(torch.tensor([p]), 32) for p in (at, to)]
        return float((rotate(q, tables[0]) * rotate(k, tables[1])).sum())

    assert score([3.0, 1.0, 2.0], [7.0, 0.0, 1.0]) == pytest.approx(
        score([5.0, 3.0, 6.0], [9.0, 2.0, 5.0]), abs=1e-4
    )
    for axis in range(3):
        moved = [7.0, 0.0, 1.0]
        moved[axis] += 1.0
        assert abs(score([3.0, 1.0, 2.0], moved) - score([3.0, 1.0, 2.0], [7.0, 0.0, 1.0])) > 1e-3
    x = torch.randn(2, 5, 3, 32)
    table = rotary_table(torch.rand(5, 3) * 16, 32)
    torch.testing.assert_close(rotate(x, table).norm(dim=-1), x.norm(dim=-1))


def test_kept_tokens_keep_their_original_positions():
    stream = load_preset("joint").streams["video"]
    keep = torch.tensor([0, 5, 40, 95])
    whole, kept = stream_table(stream, 32), stream_table(stream, 32, keep)
    for a, b in zip(whole, kept):
        assert torch.equal(a[keep], b)
    positions = token_positions(stream)
    assert positions[0].tolist() == [0.0, 0.0, 0.0]
    assert positions[16].tolist() == [0.0, 0.0, 5.0]  # view 1 lies beside view 0, one column apart
    assert positions[32 + 7].tolist() == [8.0, 1.0, 3.0]
    assert len({tuple(p) for p in positions.tolist()}) == 96


def test_fourier_features():
    x = torch.tensor([[0.5, -1.0]])
    assert fourier_features(x, 0) is x
    assert fourier_features(x, 2).shape == (1, 10)
    assert fourier_features(x, 2)[0, 2] == pytest.approx(2**-0.5, abs=1e-6)
