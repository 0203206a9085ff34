"""Who is in the cluster, and what everybody has to do next: pure decisions over plain messages."""

from tf_operator.membership.decide import begin, decide
from tf_operator.membership.facts import Facts, Timers, deciders
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
    "deciders",
    "describe_end",
]
