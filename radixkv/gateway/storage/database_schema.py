"""The tables of the gateway's state file, one migration step per version."""

from __future__ import annotations

__all__ = ["SCHEMA_VERSION", "STEPS"]

_RESPONSES = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    parent TEXT,                               -- the response it goes on from
    num_children INTEGER NOT NULL DEFAULT 0,
    is_hidden INTEGER NOT NULL DEFAULT 0,      -- deleted or expired; kept while others go on from it
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    status TEXT NOT NULL,
    body TEXT NOT NULL,                        -- the response object but for its output, JSON
    input TEXT NOT NULL,                       -- input items of this request alone, JSON
    output TEXT NOT NULL DEFAULT '[]',         -- output items, JSON
    num_shared INTEGER NOT NULL DEFAULT 0,     -- bytes of the parent's token ids with which this one's begin
    tokens BLOB NOT NULL DEFAULT x'',          -- token ids behind those, packed
    model BLOB NOT NULL DEFAULT x'',           -- identifies the tokenizer and template that they are of
    size_bytes INTEGER NOT NULL
);
CREATE INDEX responses_by_age ON responses (namespace, num_children, created_s);
CREATE INDEX responses_by_expiry ON responses (expires_s) WHERE is_hidden = 0;
CREATE INDEX responses_unfinished ON responses (status) WHERE status IN ('queued', 'in_progress');
CREATE TABLE usage (
    namespace TEXT PRIMARY KEY,
    num_responses INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER response_added AFTER INSERT ON responses BEGIN
    INSERT INTO usage VALUES (new.namespace, 1, new.size_bytes) ON CONFLICT (namespace) DO UPDATE
        SET num_responses = num_responses + 1, size_bytes = usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER response_removed AFTER DELETE ON responses BEGIN
    UPDATE usage SET num_responses = num_responses - 1, size_bytes = usage.size_bytes - old.size_bytes
        WHERE namespace = old.namespace;
END;
CREATE TRIGGER response_resized AFTER UPDATE OF size_bytes ON responses BEGIN
    UPDATE usage SET size_bytes = usage.size_bytes - old.size_bytes + new.size_bytes WHERE namespace = old.namespace;
END;
CREATE TABLE transcripts (
    number INTEGER PRIMARY KEY,                -- grows with every entry
    key BLOB NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    parent BLOB,
    tokens BLOB NOT NULL,                      -- behind the parent's, packed
    num_reply INTEGER NOT NULL,                -- bytes at their end that were sampled
    decoded BLOB NOT NULL,                     -- digest of the reply's text
    created_s REAL NOT NULL
);
"""
_CONVERSATIONS = """
CREATE TABLE conversations (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    title TEXT,                                -- none until it is given or a user's message says it
    created_s REAL NOT NULL,
    updated_s REAL NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    head TEXT,                                 -- the message that was added or finished last
    num_messages INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX conversations_by_update ON conversations (namespace, updated_s);
CREATE TABLE messages (
    number INTEGER PRIMARY KEY,                -- grows with every message
    conversation TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    created_s REAL NOT NULL,
    seq INTEGER NOT NULL,                      -- the conversation's version when it last changed
    details TEXT,                              -- JSON
    size_bytes INTEGER NOT NULL,
    UNIQUE (conversation, id)
);
CREATE INDEX messages_in_order ON messages (conversation, number);
CREATE INDEX messages_below ON messages (conversation, parent);
CREATE INDEX messages_running ON messages (status) WHERE status = 'running';
CREATE TABLE conversation_usage (
    namespace TEXT PRIMARY KEY,
    num_conversations INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER message_added AFTER INSERT ON messages BEGIN
    UPDATE conversations SET num_messages = num_messages + 1, size_bytes = size_bytes + new.size_bytes
        WHERE id = new.conversation;
END;
CREATE TRIGGER message_removed AFTER DELETE ON messages BEGIN
    UPDATE conversations SET num_messages = num_messages - 1, size_bytes = size_bytes - old.size_bytes
        WHERE id = old.conversation;
END;
CREATE TRIGGER message_resized AFTER UPDATE OF size_bytes ON messages BEGIN
    UPDATE conversations SET size_bytes = size_bytes - old.size_bytes + new.size_bytes WHERE id = new.conversation;
END;
CREATE TRIGGER conversation_added AFTER INSERT ON conversations BEGIN
    INSERT INTO conversation_usage VALUES (new.namespace, 1, new.size_bytes) ON CONFLICT (namespace) DO UPDATE
        SET num_conversations = num_conversations + 1, size_bytes = conversation_usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER conversation_removed AFTER DELETE ON conversations BEGIN
    UPDATE conversation_usage SET num_conversations = num_conversations - 1,
        size_bytes = conversation_usage.size_bytes - old.size_bytes WHERE namespace = old.namespace;
END;
CREATE TRIGGER conversation_resized AFTER UPDATE OF size_bytes ON conversations BEGIN
    UPDATE conversation_usage SET size_bytes = conversation_usage.size_bytes - old.size_bytes + new.size_bytes
        WHERE namespace = new.namespace;
END;
"""
_JOBS = """
CREATE TABLE files (
    number INTEGER PRIMARY KEY,                -- grows with every file
    id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    filename TEXT NOT NULL,
    purpose TEXT NOT NULL,
    status TEXT NOT NULL,                      -- uploading, processed, or deleted: what it held goes piece by piece
    size_bytes INTEGER NOT NULL DEFAULT 0,
    created_s REAL NOT NULL,
    expires_s REAL NOT NULL,
    batch INTEGER,                             -- it shows the results of this batch; none: it holds pieces of its own
    is_failures INTEGER NOT NULL DEFAULT 0     -- it shows those that failed
);
CREATE INDEX files_by_number ON files (namespace, number);
CREATE INDEX files_by_expiry ON files (expires_s);
CREATE INDEX files_unused ON files (status) WHERE status <> 'processed';
CREATE TABLE file_pieces (
    number INTEGER PRIMARY KEY,                -- grows with every piece
    file INTEGER NOT NULL,
    content BLOB NOT NULL
);
CREATE INDEX file_pieces_in_order ON file_pieces (file, number);
CREATE TABLE batches (
    number INTEGER PRIMARY KEY,                -- grows with every batch
    id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    tenant TEXT NOT NULL,                      -- by name, on whose behalf its requests are made
    protocol TEXT NOT NULL,                    -- openai or anthropic
    endpoint TEXT NOT NULL,                    -- path of its requests
    status TEXT NOT NULL,                      -- as the OpenAI API names it, or deleted
    details TEXT NOT NULL,                     -- JSON
    created_s REAL NOT NULL,
    window_s REAL NOT NULL,                    -- when what has not begun by then expires
    expires_s REAL NOT NULL,                   -- when its results are removed
    num_total INTEGER NOT NULL DEFAULT 0,
    num_completed INTEGER NOT NULL DEFAULT 0,
    num_failed INTEGER NOT NULL DEFAULT 0,
    num_cancelled INTEGER NOT NULL DEFAULT 0,
    num_expired INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0      -- of its requests that wait, and of the results of the others
);
CREATE INDEX batches_by_number ON batches (namespace, number);
CREATE INDEX batches_open ON batches (status) WHERE status IN ('validating', 'in_progress', 'cancelling', 'deleted');
CREATE INDEX batches_by_expiry ON batches (expires_s);
CREATE TABLE batch_requests (
    number INTEGER PRIMARY KEY,                -- grows with every request, in the order of the input
    batch INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    prefix BLOB NOT NULL,                      -- orders them by what they begin with
    state INTEGER NOT NULL,                    -- 0 waits, 1 completed, 2 failed, 3 cancelled, 4 expired
    content BLOB NOT NULL,                     -- its body while it waits, then its line of the results
    UNIQUE (batch, custom_id)
);
CREATE INDEX batch_requests_waiting ON batch_requests (batch, prefix, number) WHERE state = 0;
CREATE INDEX batch_requests_by_state ON batch_requests (batch, state, number);
CREATE TABLE job_usage (
    namespace TEXT PRIMARY KEY,
    num_files INTEGER NOT NULL DEFAULT 0,
    num_batches INTEGER NOT NULL DEFAULT 0,
    size_bytes INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TRIGGER file_added AFTER INSERT ON files WHEN new.batch IS NULL BEGIN
    INSERT INTO job_usage (namespace, num_files, size_bytes) VALUES (new.namespace, 1, new.size_bytes)
        ON CONFLICT (namespace) DO UPDATE SET num_files = num_files + 1, size_bytes = job_usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER file_removed AFTER DELETE ON files WHEN old.batch IS NULL BEGIN
    UPDATE job_usage SET num_files = num_files - 1, size_bytes = job_usage.size_bytes - old.size_bytes
        WHERE namespace = old.namespace;
END;
CREATE TRIGGER file_resized AFTER UPDATE OF size_bytes ON files WHEN new.batch IS NULL BEGIN
    UPDATE job_usage SET size_bytes = job_usage.size_bytes - old.size_bytes + new.size_bytes
        WHERE namespace = new.namespace;
END;
CREATE TRIGGER batch_added AFTER INSERT ON batches BEGIN
    INSERT INTO job_usage (namespace, num_batches, size_bytes) VALUES (new.namespace, 1, new.size_bytes)
        ON CONFLICT (namespace) DO UPDATE
        SET num_batches = num_batches + 1, size_bytes = job_usage.size_bytes + new.size_bytes;
END;
CREATE TRIGGER batch_removed AFTER DELETE ON batches BEGIN
    UPDATE job_usage SET num_batches = num_batches - 1, size_bytes = job_usage.size_bytes - old.size_bytes
        WHERE namespace = old.namespace;
END;
CREATE TRIGGER batch_resized AFTER UPDATE OF size_bytes ON batches BEGIN
    UPDATE job_usage SET size_bytes = job_usage.size_bytes - old.size_bytes + new.size_bytes
        WHERE namespace = new.namespace;
END;
"""
_ITEM_LISTS = """
CREATE TABLE item_lists (
    id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    created_s REAL NOT NULL,
    metadata TEXT NOT NULL,                    -- JSON
    num_items INTEGER NOT NULL,
    size_bytes INTEGER NOT NULL                -- with its items
);
CREATE INDEX item_lists_by_namespace ON item_lists (namespace, size_bytes);
CREATE TABLE items (
    number INTEGER PRIMARY KEY,                -- grows with every item
    list TEXT NOT NULL,
    id TEXT NOT NULL,
    item TEXT NOT NULL,                        -- JSON
    size_bytes INTEGER NOT NULL,
    UNIQUE (list, id)
);
CREATE INDEX items_in_order ON items (list, number);
"""
_SETTINGS = """
ALTER TABLE conversations ADD COLUMN settings TEXT;  -- of replies whose request says nothing else, JSON
"""
_TRASH_AND_MARKS = """
ALTER TABLE conversations ADD COLUMN tags TEXT;      -- JSON
ALTER TABLE conversations ADD COLUMN is_pinned INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN is_archived INTEGER NOT NULL DEFAULT 0;
ALTER TABLE conversations ADD COLUMN trashed_s REAL; -- none: it is not in the trash
CREATE INDEX conversations_trashed ON conversations (trashed_s) WHERE trashed_s IS NOT NULL;
ALTER TABLE messages ADD COLUMN is_starred INTEGER NOT NULL DEFAULT 0;
ALTER TABLE messages ADD COLUMN name TEXT;
CREATE TABLE trashed_messages (
    number INTEGER NOT NULL,                         -- that it had
    branch TEXT NOT NULL,                            -- the message that was thrown away, with all below it
    trashed_s REAL NOT NULL,
    conversation TEXT NOT NULL,
    id TEXT NOT NULL,
    parent TEXT,
    role TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    created_s REAL NOT NULL,
    seq INTEGER NOT NULL,
    details TEXT,
    is_starred INTEGER NOT NULL,
    name TEXT,
    size_bytes INTEGER NOT NULL
);
CREATE INDEX trashed_messages_in_order ON trashed_messages (conversation, branch, number);
CREATE INDEX trashed_messages_by_time ON trashed_messages (trashed_s) WHERE id = branch;
CREATE TRIGGER trashed_message_added AFTER INSERT ON trashed_messages BEGIN
    UPDATE conversations SET size_bytes = size_bytes + new.size_bytes WHERE id = new.conversation;
END;
CREATE TRIGGER trashed_message_removed AFTER DELETE ON trashed_messages BEGIN
    UPDATE conversations SET size_bytes = size_bytes - old.size_bytes WHERE id = old.conversation;
END;
"""
_SOURCES = """
ALTER TABLE conversations ADD COLUMN source TEXT;    -- names it where it was imported from
CREATE INDEX conversations_by_source ON conversations (namespace, source) WHERE source IS NOT NULL;
"""
_INSTRUCTIONS = """
CREATE TABLE instructions (
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
"""
_OWNERS = """
CREATE TABLE gateways (
    id TEXT PRIMARY KEY,                             -- one life of a gateway
    seen_s REAL NOT NULL                             -- on the database's clock
);
ALTER TABLE responses ADD COLUMN owner TEXT;         -- the gateway that writes it
ALTER TABLE messages ADD COLUMN owner TEXT;
ALTER TABLE responses ADD COLUMN request TEXT;       -- by which another gateway can write it, JSON; none: it cannot
ALTER TABLE messages ADD COLUMN request TEXT;
ALTER TABLE files ADD COLUMN owner TEXT;             -- the gateway that it is uploaded to
ALTER TABLE batches ADD COLUMN owner TEXT;           -- the gateway that runs it
CREATE INDEX transcripts_by_parent ON transcripts (parent);
CREATE INDEX transcripts_by_age ON transcripts (created_s);
"""
_BILLING = """
CREATE TABLE billing (
    namespace TEXT PRIMARY KEY,
    num_requests INTEGER NOT NULL DEFAULT 0,
    num_computed_tokens INTEGER NOT NULL DEFAULT 0,
    num_found_tokens INTEGER NOT NULL DEFAULT 0,
    num_generated_tokens INTEGER NOT NULL DEFAULT 0,
    held_token_s REAL NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0,
    held_seen REAL NOT NULL DEFAULT 0          -- block-seconds of the cache service's counter that are in the sum
) WITHOUT ROWID;
"""
_POOLS = """
CREATE TABLE held (
    pool TEXT NOT NULL,                        -- whose counter it is; empty: that of the only pool of earlier versions
    namespace TEXT NOT NULL,
    seen REAL NOT NULL,                        -- block-seconds of the counter that are in the sum of billing
    PRIMARY KEY (pool, namespace)
) WITHOUT ROWID;
INSERT INTO held SELECT '', namespace, held_seen FROM billing WHERE held_seen > 0;
ALTER TABLE billing DROP COLUMN held_seen;
CREATE TABLE clears (
    service TEXT NOT NULL,                     -- address of a cache service
    pool TEXT NOT NULL,                        -- empty: all that it has when it answers
    namespace TEXT NOT NULL,
    owner TEXT NOT NULL,                       -- of the namespace
    asked_s REAL NOT NULL,                     -- latest time, on the database's clock
    is_pending INTEGER NOT NULL,               -- 1: requests of the namespace keep away; 2: confirmed, see its service
    PRIMARY KEY (service, pool, namespace)
) WITHOUT ROWID;
CREATE INDEX clears_by_owner ON clears (owner);
"""
_FLUSHES = """
ALTER TABLE gateways ADD COLUMN flush TEXT;                -- its last that is in the sums of billing
"""
_MET_POOLS = """
CREATE TABLE pools (
    service TEXT NOT NULL,                     -- address of a cache service
    pool TEXT NOT NULL,
    seen_s REAL NOT NULL,                      -- on the database's clock, within a day
    PRIMARY KEY (service, pool)
) WITHOUT ROWID;
"""

STEPS = (
    _RESPONSES,
    _CONVERSATIONS,
    _JOBS,
    _ITEM_LISTS,
    _SETTINGS,
    _TRASH_AND_MARKS,
    _SOURCES,
    _INSTRUCTIONS,
    _OWNERS,
    _BILLING,
    _POOLS,
    _FLUSHES,
    _MET_POOLS,
)
"""Migration steps by version; a file of an earlier version is migrated to the latest when opened."""

SCHEMA_VERSION = len(STEPS)
