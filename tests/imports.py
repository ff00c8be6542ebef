"""Environment of programs that tests start, which import whatever the tests can import."""

import os
import sys

IMPORTS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
