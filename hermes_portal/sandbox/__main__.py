"""python -m hermes_portal.sandbox: start, look at and stop a sandbox from a shell."""

import sys

from hermes_portal.sandbox.sandbox import main

sys.exit(main())
