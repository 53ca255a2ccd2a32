"""The HTTP API: books, changes and shows rides. Each request takes effect once; ride and event are one fact."""

from api.app import Settings, make_handler
from carride.settings import from_environment

handler = make_handler(from_environment(Settings))
