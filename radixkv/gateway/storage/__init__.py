"""What the gateway keeps.

database          one SQLite file behind one thread
database_schema   its tables, version by version
responses         stored responses
transcripts       histories read as the token ids they were generated as
transcript        a conversation as it is put to the model
transcript_keys   names of conversations by content
transcript_cache  a bounded cache of token ids
splicing          text appended to a reply's own ids
"""
