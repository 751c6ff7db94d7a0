"""``python -m triptych_cli`` is the ``triptych`` command."""

import sys

from triptych_cli.main import main

sys.exit(main())
