"""The tasks of a job's group: thin. What they decide is in membership, supervision, preflight and gang."""

from tf_operator.operators.gate import AdmissionOperator, ClusterOperator
from tf_operator.operators.plan import IndexOperator, PlanOperator
from tf_operator.operators.replica import ReplicaOperator
from tf_operator.operators.result import CleanupOperator, ResultOperator

__all__ = [
    "AdmissionOperator",
    "CleanupOperator",
    "ClusterOperator",
    "IndexOperator",
    "PlanOperator",
    "ReplicaOperator",
    "ResultOperator",
]
