"""The stack's bucket."""
# pyright: basic

from __future__ import annotations

import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from driftline.errors import StackError
from infra.environment import REGION
from infra.layout import Credentials, StackState

FOUND = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def ensure_bucket(state: StackState, credentials: Credentials, until: float) -> None:
    """Create the bucket if it is missing; try again until `until` (`time.monotonic` seconds).

    Raises:
        StackError: The store still refuses then.
    """
    client = boto3.client(
        "s3",
        endpoint_url=state.ports.s3_url,
        region_name=REGION,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(connect_timeout=3, read_timeout=10, retries={"max_attempts": 1}, proxies={}),
    )
    while True:
        try:
            client.create_bucket(Bucket=state.bucket)
            return
        except ClientError as error:
            if error.response["Error"]["Code"] in FOUND:
                return
            trouble = error
        except BotoCoreError as error:
            trouble = error
        if time.monotonic() > until:
            raise StackError(f"bucket {state.bucket} cannot be created at {state.ports.s3_url}: {trouble}")
        time.sleep(0.5)
