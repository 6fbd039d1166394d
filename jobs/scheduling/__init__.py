"""When a job is due: cron text, clock changes, bounds and missed ticks. Pure: values in, values out."""
