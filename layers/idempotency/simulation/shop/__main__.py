"""`python -m shop`: live the layer under handlers that misbehave, in virtual time."""

import sys

from shop import telling

raise SystemExit(telling.main(sys.argv[1:]))
