"""The worker runtime: what runs on a worker machine. It needs a broker URL and nothing of the scheduler.

jobs, schema, context     what authors write and see
outcome, execution        run one attempt and judge how it ended (`isolation`, `subprocess`: in a child process)
holding                   the deliveries at hand: which may run, which must be asked about, which are answered
store, reporting          events out: to the broker when it answers, to a local file when not, in order
heartbeat, runtime        proof of life, and the wiring of it all
"""
