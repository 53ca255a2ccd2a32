"""`python -m mutants`: remove each rule of the idempotency layer in turn."""

from mutants import main
from mutants.library import LIBRARY

raise SystemExit(main([LIBRARY]))
