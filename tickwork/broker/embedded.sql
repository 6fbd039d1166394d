-- The embedded broker's own tables. Its version is PRAGMA user_version (see embedded_store.py).
-- It is run statement by statement, split at semicolons: there are none in its comments.

CREATE TABLE topology (version INTEGER NOT NULL);

INSERT INTO topology VALUES (0);

-- owner: the consumer that an exclusive queue belongs to. active: who receives from a single-active queue.
CREATE TABLE queue (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    dead_letter_exchange TEXT,
    message_ttl_seconds REAL,
    delivery_limit INTEGER,
    single_active INTEGER NOT NULL,
    owner INTEGER,
    active INTEGER
);

CREATE TABLE binding (
    exchange TEXT NOT NULL,
    pattern TEXT NOT NULL,
    queue INTEGER NOT NULL,
    PRIMARY KEY (exchange, pattern, queue)
) WITHOUT ROWID;

-- A consumer lives as long as its lease. Ids are never used again, so what a dead one held cannot be mistaken.
CREATE TABLE consumer (id INTEGER PRIMARY KEY AUTOINCREMENT, lease_until REAL NOT NULL);

-- consumer: who holds the message (NULL: it waits). delivery_count: how many times it was handed out.
CREATE TABLE message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue INTEGER NOT NULL,
    consumer INTEGER,
    delivery_count INTEGER NOT NULL DEFAULT 0,
    expires_at REAL,
    routing_key TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    message_id TEXT NOT NULL,
    type TEXT NOT NULL,
    headers BLOB NOT NULL,
    deaths BLOB NOT NULL,
    body BLOB NOT NULL
);

CREATE INDEX message_ready ON message (queue) WHERE consumer IS NULL;

CREATE INDEX message_held ON message (consumer) WHERE consumer IS NOT NULL;

CREATE INDEX message_expiring ON message (expires_at) WHERE consumer IS NULL AND expires_at IS NOT NULL;
