"""Who may do what, as kept in a database.

Each function takes the connection of a link. Those that write are called inside a transaction.
"""

import sqlalchemy as sa

from demur_proto.errors import NotFoundError, StateError, StorageError
from demur_server.store.base import DeviceState, NamedCredential, Role
from demur_server.store.inserting import insert_once
from demur_server.store.restores import last_mark
from demur_server.store.schema import credentials, devices, tokens


def add_token(sql: sa.Connection, token_hash: bytes) -> None:
    """Keep an unused token; again, it changes nothing."""
    insert_once(sql, tokens, {"hash": token_hash})


def redeem_token(
    sql: sa.Connection, token_hash: bytes, *, nonce_hash: bytes, device_id: bytes
) -> bool:
    """Use a token up and enrol a device with it; see `Store.redeem_token`."""
    mine = tokens.c.hash == token_hash
    row = sql.execute(tokens.select().where(mine).with_for_update()).first()
    if row is None:
        return False
    if row.nonce_hash is None:
        sql.execute(tokens.update().where(mine).values(nonce_hash=nonce_hash, device_id=device_id))
        insert_once(sql, devices, {"id": device_id})
        return True
    return bool((bytes(row.nonce_hash), bytes(row.device_id)) == (nonce_hash, device_id))


def device_state(sql: sa.Connection, device_id: bytes) -> DeviceState | None:
    """What is known about a device."""
    row = sql.execute(sa.select(devices.c.revoked).where(devices.c.id == device_id)).first()
    if row is None:
        return None
    return DeviceState.ENROLLED if row.revoked is None else DeviceState.REVOKED


def revoke_device(sql: sa.Connection, device_id: bytes, reason: str) -> None:
    """Refuse a device from now on; the first reason is kept.

    In a store that came back from a backup any id can be revoked: devices that were enrolled since
    are not known there, and their credentials follow from the master key all the same.

    Raises:
        NotFoundError: it was never enrolled.
    """
    if device_state(sql, device_id) is None:
        if last_mark(sql) is None:
            raise NotFoundError(f"there is no device {device_id.hex()}")
        insert_once(sql, devices, {"id": device_id})
    sql.execute(
        devices.update()
        .where(devices.c.id == device_id, devices.c.revoked.is_(None))
        .values(revoked=reason)
    )


def all_devices(sql: sa.Connection) -> list[tuple[bytes, str | None]]:
    """Every device by id; with the reason if it is revoked."""
    found = sql.execute(devices.select())
    return sorted((bytes(row.id), row.revoked) for row in found)


def revoked_devices(sql: sa.Connection) -> dict[bytes, str]:
    """Every revoked device with the reason."""
    found = sql.execute(devices.select().where(devices.c.revoked.is_not(None)))
    return {bytes(row.id): row.revoked for row in found}


def add_credential(sql: sa.Connection, credential: NamedCredential) -> None:
    """Keep a named credential.

    Raises:
        StateError: there is one of this name.
    """
    values = {
        "name": credential.name,
        "role": credential.role.value,
        "hash": credential.credential_hash,
    }
    if not insert_once(sql, credentials, values):
        raise StateError(f"there is a credential {credential.name!r} already")


def remove_credential(sql: sa.Connection, name: str) -> None:
    """Forget a named credential.

    Raises:
        NotFoundError: there is none of this name.
    """
    if not sql.execute(credentials.delete().where(credentials.c.name == name)).rowcount:
        raise NotFoundError(f"there is no credential {name!r}")


def all_credentials(sql: sa.Connection) -> list[NamedCredential]:
    """Every named credential, by name.

    Raises:
        StorageError: one has an unknown role.
    """
    try:
        kept = [
            NamedCredential(name=row.name, role=Role(row.role), credential_hash=bytes(row.hash))
            for row in sql.execute(credentials.select())
        ]
    except ValueError:
        raise StorageError("a credential has a role that this version does not know") from None
    return sorted(kept, key=lambda each: each.name)  # databases differ in how they sort text
