"""Who is in the cluster, and what everybody has to do next: pure decisions over plain messages."""

from tf_operator.membership.decide import Facts, Timers, begin, decide
from tf_operator.membership.messages import Cluster, Judgement, Member, Phase, Status, Verdict, describe_end
from tf_operator.membership.owner import Owner

__all__ = [
    "Cluster",
    "Facts",
    "Judgement",
    "Member",
    "Owner",
    "Phase",
    "Status",
    "Timers",
    "Verdict",
    "begin",
    "decide",
    "describe_end",
]
