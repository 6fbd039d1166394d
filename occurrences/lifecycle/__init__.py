"""What the house does by itself: the life of an occurrence, one file per chapter, in the order of the story.

    dispatch      born     a due tick becomes an occurrence and an outbox message
    relay         sent     the outbox reaches the broker
    intake        heard    what workers report moves the occurrence on
    dead_letters  broken   what the broker could not deliver becomes a failure, or another try
    zombies       lost     what fell silent is found
    retention     forgotten  what is old is deleted

The chapters never import each other: they meet in rows and in `transitions`, so each runs in a process of its own,
any number of times, fails alone and can be read alone. One pass of a chapter is a `tick`: it does a bounded amount
of work and says how much; `occurrences.management.role_loop` makes a daemon of it.
"""
