"""Makes the modules beside the tests importable: a package of this folder's name would hide the real one."""

import logging
import sys
from pathlib import Path

import torch._dynamo.guards

sys.path.insert(0, str(Path(__file__).parent))

# torch writes a trace of every compilation where a handler takes all levels, as pytest's does
logging.getLogger("torch.__trace").disabled = True

# Dynamo times its guards once a compilation, after emptying the processor's caches: a tenth of a second each
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0
