"""One login and the leases that hang on it: renewed, recorded for whoever comes next, ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_operator.errors import SecretError, SecretUnavailableError
from tf_operator.secrets.faults import DeniedError, NotAskedError
from tf_operator.secrets.leases import Tenure, Term
from tf_operator.secrets.model import Lease
from tf_operator.secrets.session import VaultSession, translated

TOKEN = "token"
"""The name of the login's own term, beside the leases' ids."""
Open = Callable[[str], VaultSession]
"""Connection id → a new login."""


class Grant:
    """What one login was given. `session` is None for what a watcher that died has left: only its record is known."""

    def __init__(self, connection: str, session: VaultSession | None, accessor: str | None = None) -> None:
        self.connection, self.session, self.accessor = connection, session, accessor
        self.leases: dict[str, Lease] = {}
        self.tenure = Tenure()

    # -- its record, which holds no secret: nobody can use an accessor or a lease id without a token of his own

    @property
    def record(self) -> dict[str, Any]:
        """What the next watcher has to know to end it."""
        leases = [[lease.lease_id, lease.path] for lease in self.leases.values()]
        return {"connection": self.connection, "accessor": self.accessor, "leases": leases}

    @classmethod
    def of_record(cls, record: Mapping[str, Any], now: float) -> Grant:
        """What a dead watcher left. Nobody can renew its token any more: all of it is due to be fetched anew."""
        grant = cls(str(record["connection"]), None, record["accessor"])
        for lease_id, path in record["leases"]:
            grant.leases[lease_id] = Lease(lease_id, 0.0, False, path, grant.connection)
        terms = dict.fromkeys(grant.leases, Term(now, now, 0.0, renewable=False))
        grant.tenure = Tenure(terms)
        return grant

    # -- while the program runs

    def add(self, lease: Lease, now: float) -> None:
        """Know of a lease; of the token it hangs on at the first one. Raises SecretError if that cannot be asked."""
        self.leases[lease.lease_id] = lease
        terms = {**self.tenure.terms, lease.lease_id: Term.granted(lease.duration, now, lease.renewable)}
        self.tenure = Tenure(terms)

    def look_up_token(self, now: float) -> None:
        """Know our own token's accessor and its term. One that was given is not ours to renew or to end."""
        if self.session is None or not self.session.made_token or self.accessor:
            return
        about = self.session.get("auth/token/lookup-self", self._where)
        self.accessor = str(about["accessor"])
        if ttl := float(about.get("ttl") or 0):
            term = Term.granted(ttl, now, bool(about.get("renewable")))
            self.tenure = Tenure({**self.tenure.terms, TOKEN: term})

    def renew(self, names: Iterable[str], now: float, log: Callable[[str], None]) -> None:
        """Ask for the time that each was first good for. What is refused is due to be fetched anew."""
        for name in names:
            try:
                duration, renewable = self._renew(name, self.tenure.terms[name].wanted)
                self.tenure = self.tenure.renewed(name, duration, renewable, now)
            except SecretUnavailableError as error:
                if name not in self.tenure.pauses:
                    log(f"{error}; it is tried again")
                self.tenure = self.tenure.unavailable([name], now)
                # The others' turn is the next one: each may take a request's timeout, and a program is watched between.
                return
            except SecretError as error:
                log(f"{error}; it is fetched anew")
                self.tenure = self.tenure.refused(name)

    def _renew(self, name: str, seconds: float) -> tuple[float, bool]:
        increment = int(seconds)
        if name == TOKEN:
            answer = self._post("auth/token/renew-self", f"renewing the token of {self._where}", increment=increment)
            answer = answer["auth"]
        else:
            where = f"renewing the lease on {self.leases[name].path} ({self._where})"
            answer = self._post("sys/leases/renew", where, lease_id=name, increment=increment)
        return float(answer["lease_duration"]), bool(answer["renewable"])

    def forget(self, leases: Iterable[str]) -> None:
        """They are somebody else's to end."""
        for name in leases:
            self.leases.pop(name, None)
        self.tenure = self.tenure.without(list(leases))

    # -- the end

    def end(self, open_session: Open) -> dict[str, str]:
        """Revoke all of it. Lease id → why it could not be, where that is final; else SecretError: it is as it was."""
        if self.session is None:
            session = open_session(self.connection)
            try:
                return self._end_of_the_dead(session)
            finally:
                session.close()
        refused = self._revoke_leases(self.session)
        if self.session.made_token:
            # Ends its leases too, where no lease may be ended by its id.
            with contextlib.suppress(DeniedError):
                self._post("auth/token/revoke-self", f"revoking the token of {self._where}")
            refused = {}
        self.session.close()
        return refused

    def _end_of_the_dead(self, session: VaultSession) -> dict[str, str]:
        refused = self._revoke_leases(session)
        if not self.accessor:
            return refused
        where = f"revoking a token by its accessor ({self._where})"
        body = {"accessor": self.accessor}
        try:
            translated(
                lambda: session.client.adapter.post("/v1/auth/token/revoke-accessor", json=body),
                where,
                session.address,
            )
        except (SecretUnavailableError, NotAskedError):
            raise
        except SecretError as error:
            # One that has run out by itself is refused in the same way as one we may not touch.
            return dict.fromkeys(refused, str(error))
        return {}

    def _revoke_leases(self, session: VaultSession) -> dict[str, str]:
        refused = {}
        for lease in list(self.leases.values()):
            try:
                session.revoke(lease)
            except (SecretUnavailableError, NotAskedError):
                raise
            except SecretError as error:
                # A dead token of our own has taken its leases along; another's says nothing of them.
                if self.session is None and isinstance(error, DeniedError) and error.bad_token:
                    raise
                refused[lease.lease_id] = str(error)
        return refused

    @property
    def _where(self) -> str:
        return f"connection {self.connection}"

    def _post(self, path: str, where: str, **body: Any) -> dict[str, Any]:
        assert self.session is not None
        session = self.session
        answer: dict[str, Any] = translated(
            lambda: session.client.adapter.post(f"/v1/{path}", json=body), where, session.address
        )
        return answer
