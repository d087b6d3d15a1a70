"""Prefect's SQLite database, as the local stack starts it: writers wait for one another.

PrefectHQ/prefect#23051: transactions that read before they write are refused at once when another one commits in
between.
"""

import asyncio
from pathlib import Path

import pytest
import sqlalchemy as sa
from prefect.server.database.configurations import AioSqliteConfiguration
from sqlalchemy.exc import OperationalError

from infra.prefect_server import lock_when_transactions_begin


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AioSqliteConfiguration:
    monkeypatch.setattr(AioSqliteConfiguration, "begin_transaction", AioSqliteConfiguration.begin_transaction)
    return AioSqliteConfiguration(f"sqlite+aiosqlite:///{tmp_path / 'prefect.db'}", timeout=20)


async def count_together(database: AioSqliteConfiguration) -> int:
    """Two transactions that read a number, wait for the other to have read it too, and add one to it."""
    engine = await database.engine()
    async with engine.begin() as connection:
        await connection.execute(sa.text("create table counter (value integer)"))
        await connection.execute(sa.text("insert into counter values (0)"))

    async def add_one() -> None:
        async with await database.session(engine) as session, database.begin_transaction(session):
            value = (await session.execute(sa.text("select value from counter"))).scalar_one()
            await asyncio.sleep(0.5)
            await session.execute(sa.text("update counter set value = :value"), {"value": value + 1})

    try:
        await asyncio.gather(add_one(), add_one())
        async with engine.begin() as connection:
            return (await connection.execute(sa.text("select value from counter"))).scalar_one()
    finally:
        await engine.dispose()


async def test_transactions_that_read_before_they_write_wait_for_one_another(
    database: AioSqliteConfiguration,
) -> None:
    lock_when_transactions_begin()
    assert await count_together(database) == 2


async def test_this_prefect_still_needs_it(database: AioSqliteConfiguration) -> None:
    """When this fails, Prefect has mended it, and `infra/prefect_server.py` can go."""
    with pytest.raises(OperationalError, match="database is locked"):
        await count_together(database)
