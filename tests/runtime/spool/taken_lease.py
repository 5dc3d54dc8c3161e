"""A lease that another driver takes over."""

import uuid

from raybio.runtime.spool import lease as leases
from raybio.runtime.spool.lease import LEASE, Lease
from raybio.store.bucket import BucketFolder


def taken_from(folder: BucketFolder) -> Lease:
    """Take over a lease in one request, as a driver does to which the holder seems dead."""
    id_ = uuid.uuid4().hex
    return Lease(folder, id_, folder.write(LEASE, leases._content(id_, 0, 0.0)))
