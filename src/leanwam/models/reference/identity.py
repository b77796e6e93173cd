"""Which weights these are: a hash that travels into traces, episode tables and cards."""

from __future__ import annotations

import hashlib

from leanwam.models.reference.config import identity_bytes
from leanwam.models.reference.model import ReferenceWAM


def checkpoint_id(model: ReferenceWAM) -> str:
    """``leanwam reference heads sha256:0123456789abcdef``: over configuration and every tensor, in name order."""
    digest = hashlib.sha256(identity_bytes(model.config))
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return f"leanwam reference {model.config.name} sha256:{digest.hexdigest()[:16]}"
