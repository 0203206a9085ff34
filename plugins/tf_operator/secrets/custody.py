"""The secrets of one program for as long as it lives: fetched, renewed, fetched anew, and ended with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.identity import Identity
from tf_operator.job_spec.rendered import RenderedSecret
from tf_operator.runners.base import SecretBundle
from tf_operator.secrets.grants import TOKEN, Grant
from tf_operator.secrets.leases import Act
from tf_operator.secrets.ledger import Ledger, Record
from tf_operator.secrets.model import Lease, read_through
from tf_operator.secrets.resolver import fetch
from tf_operator.secrets.session import PATIENCE, Login, Patience, VaultSession

HAND_OVER = 60.0
"""Seconds from the replacement of a program's files to the end of what it used before: time to notice."""
DELIVERY_PAUSE = 5.0
"""Seconds to the next try where the files could not be replaced."""
END_PATIENCE = 5.0
"""Seconds for a Vault that is away when a program ends; what is then left is on record."""


@dataclass
class _Replaced:
    """What the program used before. `at`: when it is ended; None until its successor has been delivered."""

    grant: Grant
    at: float | None = None


class Custody:
    """Belongs to a watcher, and is on record for the next one. Not for two threads at once."""

    def __init__(
        self,
        refs: Sequence[RenderedSecret],
        login: Login,
        identity: Identity,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._refs, self._login, self._identity, self._ledger = list(refs), login, identity, ledger
        self._clock = clock
        self._save: Callable[[Record], bool | None] = lambda record: True
        self._log: Callable[[str], None] = lambda text: None
        self._grants: list[Grant] = []
        self._replaced: list[_Replaced] = []
        self._new: SecretBundle | None = None
        self._deliver_at = 0.0
        self._saved: Record = []
        self._unsaved = False

    def bind(self, save: Callable[[Record], bool | None], log: Callable[[str], None]) -> None:
        """Where the record goes (False: not now, None: no longer ours to write), and what a person should read."""
        self._save, self._log = save, log

    # -- the course of a program

    def fetch(self) -> SecretBundle:
        """Everything, for a program that is about to start. Raises SecretError; then nothing is left of it."""
        if not self._refs:
            return SecretBundle()
        self.end()
        bundle = self._fetch(self._refs, PATIENCE)
        for lease in self._leases():
            if not self._is_replaceable(lease):
                self._log(
                    f"secret {lease.path}: it is in a variable, which nobody can replace in a living program: it is"
                    " good until its lease's max TTL, and no longer than this watcher lives; use file instead of env"
                )
        return bundle

    def inherit(self, left: Sequence[dict[str, Any]]) -> None:
        """What an earlier watcher left is ours to replace and to end."""
        own = {name for grant in self._all() for name in grant.leases}
        for record in [*left, *self._ledger.read()]:
            if not own.issuperset(name for name, _ in record["leases"]):
                grant = Grant.of_record(record, self._clock())
                self._grants.append(grant)
                own.update(grant.leases)
        self._record()

    def tend(self) -> SecretBundle | None:
        """Renew what is due. New files, where there are any: to be given to the program until `delivered`."""
        now = self._clock()
        for replaced in [one for one in self._replaced if one.at is not None and one.at <= now]:
            self._replaced.remove(replaced)
            self._end_one(replaced.grant, Patience(0))
        for grant in list(self._grants):
            step = grant.tenure.next(now)
            if step.act is Act.RENEW:
                grant.renew(step.names, now, self._log)
            elif step.act is Act.FETCH:
                self._fetch_anew(grant, step.names, now)
        if self._unsaved:
            self._record()
        if self._new is None or now < self._deliver_at:
            return None
        self._deliver_at = now + DELIVERY_PAUSE
        return self._new

    def delivered(self) -> None:
        """The program has the new files: the old ones' leases are ended soon."""
        self._new = None
        for replaced in self._replaced:
            if replaced.at is None:
                replaced.at = self._clock() + HAND_OVER

    def end(self) -> None:
        """The program has ended: so does what it was given. Never raises; what is left is on record."""
        self.revoke()

    def revoke(self) -> Record:
        """As `end`; what was really revoked."""
        self._new = None
        grants, self._grants, self._replaced = self._all(), [], []
        again = Patience(END_PATIENCE)
        revoked = [self._end_one(grant, again) for grant in grants]
        self._record()
        return [one for one in revoked if one["leases"]]

    # -- fetching

    def _fetch(self, refs: Sequence[RenderedSecret], patience: float) -> SecretBundle:
        again = Patience(patience)
        opened: dict[str, Grant] = {}

        def session(connection: str) -> VaultSession:
            if connection not in opened:
                opened[connection] = Grant(connection, again(lambda: self._open(connection)))
            found = opened[connection].session
            assert found
            return found

        def granted(lease: Lease) -> None:
            grant = opened[lease.connection]
            grant.add(lease, self._clock())
            if grant not in self._grants:
                self._grants.append(grant)
            # On record at once: whatever happens next, somebody ends it.
            again(lambda: grant.look_up_token(self._clock()))
            if not self._record():
                raise SecretError(f"secret {lease.path}: a newer watcher has {self._identity.replica}")

        try:
            return fetch(refs, session, again, granted).bundle
        except BaseException:
            self._grants = [grant for grant in self._grants if grant not in opened.values()]
            for grant in opened.values():
                self._end_one(grant, Patience(0))
            opened.clear()
            self._record()
            raise
        finally:
            for grant in opened.values():
                if not grant.leases and grant.session:
                    grant.session.close()

    def _open(self, connection: str) -> VaultSession:
        made: Any = None
        trouble = None
        try:
            made = self._login(connection)
        except SecretError:
            raise
        except Exception as error:  # Airflow cannot be asked for the connection: no reason to leave a program alone
            trouble = type(error).__name__
        if trouble:
            raise SecretUnavailableError(f"connection {connection}: it cannot be had now ({trouble})")
        return made if isinstance(made, VaultSession) else VaultSession(connection, made)

    def _fetch_anew(self, grant: Grant, names: Collection[str], now: float) -> None:
        ending = [lease for name, lease in grant.leases.items() if name in names or TOKEN in names]
        replaceable = [lease for lease in ending if self._is_replaceable(lease)]
        for lease in ending:
            if lease not in replaceable:
                self._log(f"secret {lease.path}: its lease cannot be renewed any more, and a variable not be replaced")
        if not replaceable:
            grant.tenure = grant.tenure.without(names)
            return
        refs = [ref for ref in self._refs if any(read_through(lease, [ref]) for lease in replaceable)]
        try:
            bundle = self._fetch(refs, patience=0)
        except SecretUnavailableError as error:
            if not any(name in grant.tenure.pauses for name in names):
                self._log(f"{error}; it is tried again")
            if TOKEN in names and len(replaceable) > 1:
                # What is behind one of them is away: the others need not end with the token.
                grant.tenure = grant.tenure.singly([lease.lease_id for lease in replaceable], TOKEN, now)
            else:
                grant.tenure = grant.tenure.unavailable(names, now)
        except SecretError as error:
            self._log(f"{error}; its lease is not renewed any more")
            grant.tenure = grant.tenure.without(names)
        else:
            self._replace(grant, names, [lease.lease_id for lease in replaceable])
            self._new = _merged(self._new, bundle)
            self._deliver_at = 0.0
            paths = ", ".join(sorted({lease.path for lease in replaceable}))
            self._log(f"fetched anew, as the lease could not be renewed: {paths}")
            self._record()

    def _replace(self, grant: Grant, names: Collection[str], replaced: Collection[str]) -> None:
        if set(replaced) == set(grant.leases):
            self._grants.remove(grant)
            self._replaced.append(_Replaced(grant))
            return
        # The others still hang on its token.
        session = grant.session and replace(grant.session, made_token=False)
        apart = Grant(grant.connection, session, None)
        apart.leases = {name: grant.leases[name] for name in replaced}
        self._replaced.append(_Replaced(apart))
        grant.forget(replaced)
        grant.tenure = grant.tenure.without(names)

    def _is_replaceable(self, lease: Lease) -> bool:
        refs = read_through(lease, self._refs)
        return bool(refs) and all(ref.file is not None for ref in refs)

    # -- ending and recording

    def _end_one(self, grant: Grant, again: Patience) -> dict[str, Any]:
        """What was revoked, as a record. A lease is let go of only where Vault refuses to end it."""
        try:
            refused = again(lambda: grant.end(self._open))
        except SecretError as error:
            if grant.leases:
                self._log(f"leases are not revoked: {error}; the next watcher or `tf-operator clean` will")
                self._grants.append(Grant.of_record(grant.record, float("inf")))
            return {**grant.record, "leases": []}
        for why in dict.fromkeys(refused.values()):
            self._log(f"{why}: the lease is left to run out by itself")
        return {**grant.record, "leases": [lease for lease in grant.record["leases"] if lease[0] not in refused]}

    def _leases(self) -> list[Lease]:
        return [lease for grant in self._grants for lease in grant.leases.values()]

    def _all(self) -> list[Grant]:
        return [*self._grants, *(one.grant for one in self._replaced)]

    def _record(self) -> bool:
        """Write down what there is to end, where that has changed. False where a newer watcher does so."""
        record = [grant.record for grant in self._all() if grant.leases]
        if record == self._saved and not self._unsaved:
            return True
        saved = self._save(record)
        self._saved, self._unsaved = record, saved is False
        if saved is None:
            return False
        try:
            self._ledger.write(self._identity, record)
        except OSError as error:
            self._log(f"leases are not on record on this host: {error}")
        return True


def _merged(old: SecretBundle | None, new: SecretBundle) -> SecretBundle:
    """What was not delivered yet, and what has been fetched since."""
    if old is None:
        return new
    files = {file.name: file for file in (*old.files, *new.files)}
    return SecretBundle(files=tuple(files.values()), mask=[*old.mask, *new.mask])


def end_left(ledger: Ledger, login: Login, log: Callable[[str], None]) -> Record:
    """End what is on record on this host for a replica nobody watches any more. What was really revoked."""
    identity = ledger.identity()
    if identity is None:
        return []
    custody = Custody([], login, identity, ledger)
    custody.bind(lambda record: True, log)
    custody.inherit([])
    return custody.revoke()


def describe(record: Iterable[dict[str, Any]]) -> str:
    """`2 leases: database/creds/reader, ...`."""
    paths = [path for grant in record for _, path in grant["leases"]]
    return f"{len(paths)} lease{'s' if len(paths) != 1 else ''}: {', '.join(sorted(set(paths)))}"
