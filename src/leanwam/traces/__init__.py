"""Traces: what every head yielded at every step of dense sampling calls, on disk (NumPy and zarr).

A trace is a zarr v3 folder, ``NAME.trace.zarr``. Its root attributes are ``leanwam_trace`` (1), ``complete``
(the calls that are whole on disk; what lies beyond does not exist) and the fields of ``TraceMeta``. Its
arrays::

    timesteps                       [step]                  as the sampler counts them
    calls/episode, index, seed      [call]                  int64; calls/task: string
    heads/NAME/model_output         [call, step, *shape]    what the head predicted
    heads/NAME/sample               [call, step+1, *shape]  x_t before each step, and the final one last
    heads/NAME/pred_original_sample [call, step, *shape]    the denoised estimate after each step
    heads/NAME/solver_weights       [step+1]                c, w_0 … w_{n-1} of x_final = c·x_T + Σ w_i·out_i

One of the three quantities is enough; of the attributes ``n_steps`` and ``heads`` are needed, of the arrays
none but those of the heads. Other programs choose chunks and codecs as they like; leanwam's own have one
chunk per call, raw bytes and a crc32c. One key goes beyond version 1: a head may name its own ``sampler``.
"""

from leanwam.traces.frame import write_solver_weights, write_timesteps
from leanwam.traces.importing import ImportResult, import_arrays
from leanwam.traces.meta import QUANTITIES, HeadMeta, Sampler, TraceMeta, Unnormalize
from leanwam.traces.store import CallBlock, Checksums, Trace, open_trace
from leanwam.traces.verifying import Problem, VerifyReport, verify
from leanwam.traces.writer import TraceWriter

__all__ = [
    "QUANTITIES",
    "CallBlock",
    "Checksums",
    "HeadMeta",
    "ImportResult",
    "Problem",
    "Sampler",
    "Trace",
    "TraceMeta",
    "TraceWriter",
    "Unnormalize",
    "VerifyReport",
    "import_arrays",
    "open_trace",
    "verify",
    "write_solver_weights",
    "write_timesteps",
]
