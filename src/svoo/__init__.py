"""SVOO: training-free sparse attention for video diffusion.

Importing this does nothing and needs only torch.
"""

from svoo.attention import sparse_attention
from svoo.backends import run_plan
from svoo.catalogue import models
from svoo.clustering import co_cluster
from svoo.config import SVOOConfig
from svoo.density import required_density
from svoo.errors import SVOOError
from svoo.layout import VideoLayout
from svoo.methods.svoo import LabelState
from svoo.plan import BlockPlan
from svoo.profile import Profile
from svoo.selection import select_blocks

__version__ = "0.1.0"
__all__ = [
    "BlockPlan",
    "LabelState",
    "Profile",
    "SVOOConfig",
    "SVOOError",
    "VideoLayout",
    "co_cluster",
    "models",
    "required_density",
    "run_plan",
    "select_blocks",
    "sparse_attention",
]
