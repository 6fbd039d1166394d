"""The worker runtime: what runs on a worker machine. It needs a broker URL and nothing of the scheduler.

jobs, schema, context     what authors write and see
outcome, execution        run one attempt and judge how it ended (`children`, `isolation`: in a child process)
holding                   the deliveries at hand: which may run, which must be asked about, which are answered
continuity                whether it was in touch all the time, or must ask about what it holds
gathering, reporting      events out: folded into batches, to the broker when it answers, in order
store                     the local file where they wait when it does not, and what ended here
heartbeat, runtime        proof of life, and the wiring of it all
"""
