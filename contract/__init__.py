"""Everything that follows from the event's types, written by ``make contract``. Never part of a deployed function."""
