"""What promotions leave in the store: an append-only log, and the journal of the one under way.

Called by promotion.py. A log entry is a note of its own that is only ever created (a conditional write), so entries are
never changed and two writers never take one place. The journal is a single note: written before the first effect,
removed after the last; whoever finds one that nobody owns finishes it or undoes it. Limits: whoever can delete objects
of the store can delete the log; grant the right to delete to nobody who serves.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from components.errors import PipelineError
from components.storage.store import ArtifactStore, NoteChangedError

Action = Literal["promoted", "rolled back", "undone"]
Phase = Literal["begun", "live"]


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    Attributes:
        id: of the promotion; an entry is written once for it.
        at: when, ISO 8601 with the zone.
        action: what was done; `undone` when everything was put back.
        version: the version it was about.
        previous: the champion before; None for none.
        by: who.
        reason: why, as they said.
        forced: why a failed gate was overridden; empty when none was.
        target: where it is served, in words.
        serving: the serving config, plain data.
        evidence: one sentence a gate or check.
        error: why it was undone; empty otherwise.
    """

    id: str
    at: str
    action: Action
    version: str
    previous: str | None
    by: str
    reason: str
    forced: str
    target: str
    serving: dict[str, Any] = field(default_factory=dict)
    evidence: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True)
class Journal:
    """The promotion under way.

    Attributes:
        entry: what the log gets when it is done.
        phase: `begun` (to be undone when it stops there) or `live` (to be finished).
        host: the machine that promotes.
        home: its state folder.
        restore: the version that was deployed on the target before; None for none.
    """

    entry: Entry
    phase: Phase
    host: str
    home: str
    restore: str | None


class PromotionLog:
    """Log and journal of one registered model."""

    def __init__(self, store: ArtifactStore, name: str) -> None:
        """Name the place.

        Args:
            store: where it is kept.
            name: the registered model.
        """
        self._store = store
        self._place = f"promotions/{slug(name)}"
        self.lease = self._place
        self._journal_tag: str | None = None

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        found: list[Entry] = []
        while (note := self._store.read_note(self._entry_name(len(found) + 1))) is not None:
            found.append(Entry(**json.loads(note.content)))
        return found

    def append(self, entry: Entry) -> None:
        """Write an entry behind the last one, unless its id is there already.

        Args:
            entry: the entry.
        """
        while True:
            known = self.entries()
            if any(other.id == entry.id for other in known):
                return
            try:
                content = json.dumps(asdict(entry), sort_keys=True).encode()
                self._store.write_note(self._entry_name(len(known) + 1), content, replaces=None)
            except NoteChangedError:
                continue
            return

    def journal(self) -> Journal | None:
        """The promotion under way or interrupted, or None."""
        note = self._store.read_note(f"{self._place}/journal")
        if note is None:
            self._journal_tag = None
            return None
        self._journal_tag = note.tag
        content = json.loads(note.content)
        return Journal(**{**content, "entry": Entry(**content["entry"])})

    def begin(self, journal: Journal) -> None:
        """Write the journal before the first effect.

        Raises:
            PipelineError: there is one already.
        """
        self._write(journal, None)

    def advance(self, journal: Journal, phase: Phase, entry: Entry) -> Journal:
        """Say how far it is.

        Args:
            journal: as it was.
            phase: how far it is now.
            entry: what the log will get.
        """
        changed = replace(journal, phase=phase, entry=entry)
        self._write(changed, self._journal_tag)
        return changed

    def end(self) -> None:
        """Remove the journal after the last effect."""
        if self._journal_tag is not None:
            try:
                self._store.delete_note(f"{self._place}/journal", tag=self._journal_tag)
            except NoteChangedError as error:
                raise self._taken() from error
            self._journal_tag = None

    def _write(self, journal: Journal, replaces: str | None) -> None:
        content = json.dumps(asdict(journal), sort_keys=True).encode()
        try:
            self._journal_tag = self._store.write_note(f"{self._place}/journal", content, replaces=replaces)
        except NoteChangedError as error:
            raise self._taken() from error

    def _taken(self) -> PipelineError:
        return PipelineError(
            f"another promotion changed {self._store.uri}/{self._place}/journal; run the command again"
        )

    def _entry_name(self, number: int) -> str:
        return f"{self._place}/log/{number:06d}"


def last_serving(entries: list[Entry]) -> dict[str, Any] | None:
    """Where a model was served last; None when it never was.

    Args:
        entries: the log, oldest first.
    """
    return next((entry.serving for entry in reversed(entries) if entry.action != "undone"), None)


def previous_champion(entries: list[Entry], current: str) -> str | None:
    """The champion to go back to: what was served before the current one came, roll backs taken into account.

    Args:
        entries: the log, oldest first.
        current: the champion now.

    Returns:
        A version, or None when there was none or the log does not know how the current one came.
    """
    line: list[str] = []
    for entry in entries:
        if entry.action == "promoted" and entry.version != entry.previous:
            if entry.previous is not None and (not line or line[-1] != entry.previous):
                line.append(entry.previous)
            line.append(entry.version)
        elif entry.action == "rolled back":
            while line and line[-1] != entry.version:
                line.pop()
    if len(line) < 2 or line[-1] != current:
        return None
    return line[-2]


def slug(name: str) -> str:
    """A registered model's name as part of a key, a host name or a file name.

    Args:
        name: any text.
    """
    plain = re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:40]
    return plain if plain == name else f"{plain or 'model'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
