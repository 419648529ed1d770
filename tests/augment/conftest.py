"""The tests' own helper modules are imported by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
