"""A witness in the database: a trigger that writes down every move of an occurrence, with nothing of Tickwork's code.

Its rows are committed with the move they tell of, so PostgreSQL's own commit time of the row says when the move held.
"""

from __future__ import annotations

WITNESS = b"""
CREATE TABLE witness (
    number bigserial PRIMARY KEY, occurrence uuid NOT NULL, was_status smallint, was_attempt smallint,
    status smallint NOT NULL, attempt smallint NOT NULL, instance text NOT NULL
);
CREATE FUNCTION witness_a_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO witness (occurrence, status, attempt, instance)
        VALUES (NEW.id, NEW.status, NEW.attempt, NEW.instance);
    ELSIF (NEW.status, NEW.attempt, NEW.instance) IS DISTINCT FROM (OLD.status, OLD.attempt, OLD.instance) THEN
        INSERT INTO witness (occurrence, was_status, was_attempt, status, attempt, instance)
        VALUES (NEW.id, OLD.status, OLD.attempt, NEW.status, NEW.attempt, NEW.instance);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER witness AFTER INSERT OR UPDATE ON occurrences_occurrence
    FOR EACH ROW EXECUTE FUNCTION witness_a_move();
"""
MOVES = (
    "SELECT number, occurrence::text, was_status, was_attempt, status, attempt, instance, "
    "extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM witness ORDER BY number"
)
"""The moves in order, each with the Unix time of its commit."""
