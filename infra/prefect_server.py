"""Prefect's command line, with SQLite transactions that take their write lock when they begin.

    python -m infra.prefect_server server start ...

As it comes, Prefect 3.7 reads first and takes the lock at its first write. If another transaction has committed in
between, SQLite refuses at once, whatever its timeout: every poll of a worker makes two such transactions, and on a
busy machine `prefect deploy` then fails with 503 "database is locked" (PrefectHQ/prefect#23051, mended later by the
same means for the worst of them). Taking the lock first makes writers wait for one another instead.
"""

from __future__ import annotations

import runpy
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from prefect.server.database.configurations import AioSqliteConfiguration


def lock_when_transactions_begin() -> None:
    """Make every transaction of Prefect's SQLite database an immediate one."""
    begin = AioSqliteConfiguration.begin_transaction

    @asynccontextmanager
    async def begin_immediately(
        self: AioSqliteConfiguration, session: Any, with_for_update: bool = False
    ) -> AsyncGenerator[Any, None]:
        async with begin(self, session, with_for_update=True) as transaction:
            yield transaction

    AioSqliteConfiguration.begin_transaction = begin_immediately


if __name__ == "__main__":
    lock_when_transactions_begin()
    runpy.run_module("prefect", run_name="__main__", alter_sys=True)
