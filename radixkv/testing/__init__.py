"""For authors of holders and engines: proof that they keep the contract of the cache service.

conform         the command line: runs a holder against a service under watch
rules           every rule, and where the protos state it
trial           the service under watch: real, on a loopback port, broken and restarted in between
faults          the faults, and plans of when each happens
observer        the rules, checked from the messages of a holder's streams
outlook         a holder's own view when it sends a Step
record          sequences and contents of blocks, by the answered Steps; pins, quotas and retention, by the journal
adoption        what a restarted service is given, against that record
life            one incarnation of a pool, and one stream, as the observer keeps them
messages        messages as lines of the report
report          the report, as text and JSON
requests        requests to a worker under test
holder          a careful holder, as an example
hash_model      a model that is wrong only if its KV is, for the engine of the worker
hash_kv_worker  a worker whose slots hold hashes, for any holder of a pool: each wrong block shows
"""
