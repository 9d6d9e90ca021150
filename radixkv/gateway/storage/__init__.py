"""Storage of the gateway.

database          one SQLite file used by one thread
database_schema   its tables, version by version
transcripts       histories read as the token ids they were generated as
transcript        a conversation as input of the model
transcript_keys   keys of conversations by content
transcript_cache  a bounded cache of token ids
splicing          text appended to a reply's own token ids
"""
