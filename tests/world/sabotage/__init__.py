"""A saboteur plants one wrong thing in a story, and the audit has to name it."""
