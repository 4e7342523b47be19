"""Small decisions about time and load: backoff, latency, quotas, objectives, `ack_wait`.

Pure: nothing here reads a clock, opens a socket or starts a task. Each takes `now` (seconds, of any
monotonic clock) and, where it draws at random, a `random.Random`. Import from the modules.
"""
