"""Storage of the gateway.

database          a SQLite file, or a PostgreSQL database of several gateways, used by one thread
connection        what a job may do with either
postgresql        transactions with a PostgreSQL server, repeated where another gateway's conflict
shared_server     the Valkey or Redis server of several gateways
shared_streams    what replies grow by, sent through it
owners            leases of gateways; whose is what is under way
database_schema   its tables, version by version
transcripts       histories read as the token ids they were generated as
transcript        a conversation as input of the model
transcript_keys   keys of conversations by content
transcript_cache  a bounded cache of token ids
transcript_rows   the same in a database of several gateways
splicing          text appended to a reply's own token ids
"""
