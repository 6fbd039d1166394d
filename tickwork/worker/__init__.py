"""The worker runtime: what runs on a worker machine. It needs a broker URL and nothing of the scheduler.

How a delivery travels, in order (`journey` is the story, the others are its steps):

    runtime     takes it from its queue
    reading     understands it: which attempt it brings, and whether that is doubtful
    holding     has it at hand: it may begin, or is asked about (`held` is what is known of it, `commands` the answers)
    execution   runs the attempt on the loop, in a thread, or in a child process (`children`, `isolation`)
    outcome     judges how it ended
    gathering   folds what is to be told into batches
    reporting   sends them, in order (`uplink` to the broker, `backlog` from the `store` when the broker was away)
    journey     acknowledges the delivery when the broker has its report

Beside the way: `jobs`, `schema` and `context` are what authors write and see, `continuity` tells whether this process
was in touch all the time, `heartbeat` and `presence` that it lives, `clock` when time is up, `store_folder` which file
of the store is whose.
"""
