from __future__ import annotations

import builtins

import numpy as np
import pytest

from leanwam.errors import LeanwamError
from leanwam.rollouts import MetaWorldEnv
from leanwam.rollouts.cameras import NOISE_LIMIT, Camera, prepare_rendering, roughness


def test_frames_are_scenes_and_stay_so_when_another_renderer_closes():
    env, other = MetaWorldEnv("bin-picking", "pixels"), MetaWorldEnv("door-open", "pixels")
    first = env.reset(0)
    assert first.world is None
    assert first.pixels.shape == (2, 64, 64, 3)
    assert first.pixels.dtype == np.uint8
    other_first = other.reset(0)
    assert np.abs(first.pixels.astype(int) - other_first.pixels).mean() > 3
    other.close()
    again = env.reset(0)
    assert np.array_equal(first.pixels, again.pixels)
    for image in first.pixels:
        assert 1 < roughness(image) < NOISE_LIMIT / 2
        assert len(np.unique(image.reshape(-1, 3), axis=0)) > 100
    for _ in range(10):
        moved, _ = env.step(np.array([1.0, 0, 0, 0]))
    change = np.abs(moved.pixels.astype(int) - first.pixels).mean(axis=(1, 2, 3))
    assert (change > 0.5).all()
    assert (change < 30).all()
    env.close()


def test_the_scene_is_the_right_way_up():
    env = MetaWorldEnv("push", "pixels")
    env.reset(0)
    heights = []
    for push in (-1.0, 1.0):
        for _ in range(25):
            seen, _ = env.step(np.array([0, 0, push, 0]))
        red, green, blue = np.moveaxis(seen.pixels.astype(int), -1, 0)
        arm = (red - green > 60) & (red - blue > 60)
        assert arm.sum(axis=(1, 2)).min() > 50
        heights.append([np.argwhere(view)[:, 0].mean() for view in arm])
    down, up = heights
    assert up[0] < down[0] - 2  # the arm went up, to rows nearer to the top
    assert max(up[1], down[1]) < 24  # in the view that follows the hand it always comes from above
    env.close()


def test_pixels_and_keypoints_start_alike():
    seen, known = MetaWorldEnv("push", "pixels"), MetaWorldEnv("push")
    one, two = seen.reset(7), known.reset(7)
    assert seen.start_state == known.start_state
    assert np.array_equal(one.proprio, two.proprio)
    seen.close()


def test_noise_is_noticed():
    env = MetaWorldEnv("push", "pixels")
    env.reset(0)
    random = np.random.default_rng(0)

    class Noisy:
        def update_scene(self, data, camera): ...
        def render(self, out):
            out[:] = random.integers(0, 256, out.shape)

    camera = env._camera
    assert isinstance(camera, Camera)
    real, camera._renderer = camera._renderer, Noisy()
    with pytest.raises(LeanwamError, match="noise"):
        env.observe()
    camera._renderer = real
    assert env.observe().pixels is not None
    env.close()


def test_a_missing_library_names_the_debian_package(monkeypatch):
    real = builtins.__import__

    def without_egl(name, *arguments, **more):
        if name == "mujoco.egl":
            raise ImportError("Unable to load EGL library\nlibEGL.so.1: cannot open shared object file")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_egl)
    with pytest.raises(LeanwamError, match=r"apt-get install .*libegl1") as caught:
        prepare_rendering()
    assert "\n" not in str(caught.value)


def test_another_gl_platform_is_refused(monkeypatch):
    monkeypatch.setenv("PYOPENGL_PLATFORM", "osmesa")
    with pytest.raises(LeanwamError, match="EGL only"):
        prepare_rendering()
