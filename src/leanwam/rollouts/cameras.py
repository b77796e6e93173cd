"""Two 64 × 64 views of a Meta-World scene, one close to the hand, rendered headless through EGL, fast and checked.

Multisampling off before the renderer is made, shadows and reflections off: 5 frames/s become about 150 on one
core. Only EGL: under OSMesa, closing one renderer silently turns the frames of the others into noise. Every
frame is tested not to be noise all the same.
"""

from __future__ import annotations

import atexit
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leanwam.errors import LeanwamError, require

IMAGE_SIZE = 64
VIEWS = ("corner2", "hand")

#: ``corner2`` as LeRobot places it, with a narrower field of view (degrees), since a puck is 2 pixels at 60°.
_CORNER2_POS = (0.75, 0.075, 0.7)
_CORNER2_FOVY = 38.0
#: ``hand``: a free camera that follows the hand from the other side and looks below it, so that what is gripped
#: or pushed is 6 to 10 pixels wide. A fixed view of the table shows a puck in 3, and nobody learnt to grasp by it.
_HAND = {"azimuth": 30.0, "elevation": -45.0, "distance": 0.45}
_BELOW_HAND = (0.0, 0.0, -0.1)

#: Mean absolute difference of neighbouring pixels: about 5–10 in a scene, 85 in uniform noise.
NOISE_LIMIT = 40.0

DEBIAN_PACKAGES = "libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri"


def prepare_rendering() -> None:
    """Choose EGL for this process, whatever was imported before.

    Raises:
        LeanwamError: EGL cannot be loaded; the line names the Debian packages.
    """
    os.environ.setdefault("LP_NUM_THREADS", "1")
    require("mujoco", "sim")
    if os.environ.get("PYOPENGL_PLATFORM", "egl") != "egl":
        raise LeanwamError(
            f"pixels are rendered through EGL only; unset MUJOCO_GL ({os.environ.get('MUJOCO_GL')!r}) and "
            f"PYOPENGL_PLATFORM ({os.environ['PYOPENGL_PLATFORM']!r})"
        )
    try:
        import mujoco.egl
        import mujoco.gl_context
    except (ImportError, AttributeError, OSError) as error:
        os.environ.pop("PYOPENGL_PLATFORM", None)
        raise _missing_library(error) from error
    mujoco.gl_context.GLContext = mujoco.egl.GLContext


class Camera:
    """The renderer of one environment; call ``frames`` after each step.

    Args:
        model: the simulator's ``MjModel``; its multisampling and its ``corner2`` camera are changed.
        data: the ``MjData`` to look at.
    """

    def __init__(self, model: Any, data: Any) -> None:
        import mujoco

        prepare_rendering()
        model.vis.quality.offsamples = 0
        corner2 = model.camera("corner2").id
        model.cam_pos[corner2] = _CORNER2_POS
        model.cam_fovy[corner2] = _CORNER2_FOVY
        hand = mujoco.MjvCamera()
        hand.type = mujoco.mjtCamera.mjCAMERA_FREE
        hand.azimuth, hand.elevation, hand.distance = _HAND["azimuth"], _HAND["elevation"], _HAND["distance"]
        self._data, self._cameras, self._hand = data, (corner2, hand), data.body("hand")
        try:
            self._renderer = mujoco.Renderer(model, IMAGE_SIZE, IMAGE_SIZE)
        except (ImportError, RuntimeError, AttributeError) as error:
            raise _missing_library(error) from error
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = 0
        atexit.register(self._renderer.close)  # else its destructor meets a GL library that is gone already

    def frames(self) -> NDArray[np.uint8]:
        """uint8 [view, 64, 64, 3], the right way up.

        Raises:
            LeanwamError: a frame is noise.
        """
        images = np.empty((len(VIEWS), IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)
        self._cameras[1].lookat[:] = self._hand.xpos + _BELOW_HAND
        for view, camera in enumerate(self._cameras):
            self._renderer.update_scene(self._data, camera=camera)
            self._renderer.render(out=images[view])
        images[0] = images[0, ::-1, ::-1].copy()
        if max(roughness(image) for image in images) > NOISE_LIMIT:
            raise LeanwamError(
                "the renderer yields noise instead of frames; is another OpenGL context in use?"
            )
        return images

    def close(self) -> None:
        atexit.unregister(self._renderer.close)
        self._renderer.close()


def roughness(image: NDArray[np.uint8]) -> float:
    """Mean absolute difference of horizontally neighbouring pixels, in grey levels."""
    return float(np.abs(np.diff(image.astype(np.int16), axis=1)).mean())


def _missing_library(error: Exception) -> LeanwamError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return LeanwamError(
        f"pixel observations need EGL, which did not load ({reason}); on Debian or Ubuntu: "
        f"apt-get install {DEBIAN_PACKAGES}"
    )
