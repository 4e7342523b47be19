"""The acks of handing over: what the receiver of a parcel tells its sender, once.

They are acknowledgement verbs of JetStream, so that a capture of either reads alike. `+WPI` alone
differs: a lane's server reads it as "in progress" (`swarm.transport.lane.message`), a process of
this host as "passed on". The two never meet, since only one of them answers on a subject.
"""

ACK = b"+ACK"  # all is done: the requester has its answer
PASSED_ON = b"+WPI"  # a later lane has the work that came of it
NAK = b"-NAK"  # not taken, or given up: the sender has it again
VERBS = (ACK, PASSED_ON, NAK)
