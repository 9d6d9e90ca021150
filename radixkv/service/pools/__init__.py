"""The attached pools.

table    pools, their holders and leases
hello    the first message of a holder
auditor  invariants verified while the service runs
stalls   time in which the service itself did not run
"""
