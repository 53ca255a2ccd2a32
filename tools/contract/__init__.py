"""Generates the files that follow from the event types, for ``make contract``. Not deployed."""
