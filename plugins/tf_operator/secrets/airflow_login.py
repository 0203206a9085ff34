"""Login through an Airflow connection of type `vault`, in an Airflow task. The only module here that needs Airflow."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from tf_operator.errors import SecretError
from tf_operator.secrets.connection import check_extra, check_token, usable
from tf_operator.secrets.logins import guarded
from tf_operator.secrets.session import REQUEST_TIMEOUT, VaultSession


def login_airflow(connection: str) -> VaultSession:
    """Log in with the hashicorp provider's hook, whatever its auth_type. Values get masked in the task's log.

    Raises SecretError, or SecretUnavailableError for a Vault that is sealed or out of reach.
    """
    from airflow.providers.hashicorp.hooks.vault import VaultHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    where = f"connection {connection}"
    described: Any = None
    with contextlib.suppress(AirflowNotFoundException):
        described = VaultHook.get_connection(connection)
    if described is None:
        raise SecretError(f"{where}: there is no such Airflow connection; create one of type vault")
    extra = described.extra_dejson
    check_extra(extra, where)
    # The hook has these two as arguments, but does not look for them in every connection.
    options = {name: extra[name] for name in ("role_id", "token_path") if extra.get(name)}
    hook: Any = guarded(lambda: VaultHook(vault_conn_id=connection, **options), where, "Vault")
    vault = hook.vault_client
    vault.kwargs = {"timeout": REQUEST_TIMEOUT, **usable(vault.kwargs)}
    # Not hook.get_conn(): it would look the token up first, and log in a second time if it may not.
    client = guarded(lambda: vault.client, where, vault.url)
    check_token(client.token, where)
    version = extra.get("kv_engine_version")
    return VaultSession(
        connection,
        client,
        described.schema or None,
        int(version) if version else None,
        made_token=vault.auth_type != "token",
        register_masks=register_masks,
    )


def register_masks(texts: Sequence[str]) -> None:
    """Tell Airflow's own masker, in this process and in the task's supervisor."""
    from airflow.sdk.log import mask_secret

    for text in texts:
        # Airflow's messages are UTF-8, and a text that is none would silently drop out.
        if text.isascii() or text.encode("utf-8", "ignore").decode() == text:
            mask_secret(text)
