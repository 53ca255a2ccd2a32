"""What the template becomes is what was reviewed."""

import difflib

from tests.infrastructure.snapshot import SNAPSHOTS, snapshots


def test_the_template_becomes_what_was_reviewed() -> None:
    """The transformed template is the one in tests/infrastructure/snapshots; `make snapshot` renews it."""
    for path, text in snapshots().items():
        kept = path.read_text(encoding="utf-8")
        changes = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), path.name, "template.yaml", n=1, lineterm=""
        )
        assert kept == text, "run `make snapshot`, and review the difference:\n" + "\n".join(changes)


def test_every_snapshot_is_of_a_role() -> None:
    """No file is left over from a role that is no more."""
    assert set(SNAPSHOTS.iterdir()) == set(snapshots())
