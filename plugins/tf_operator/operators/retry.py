"""How a replica's end reaches Airflow: the owner's verdict, through Airflow's own RetryPolicy.

The verdict is `membership.restart_policy`'s. Airflow logs the decision and keeps its reason with the try.
"""

from __future__ import annotations

from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException


class ReplicaFailedError(AirflowException):
    """A watch that ended by a fault; `final` where no other try may come."""

    def __init__(self, text: str, *, final: bool) -> None:
        super().__init__(text)
        self.final = final


class ReplicaRetryPolicy(RetryPolicy):
    """Ends what is final at once, whatever is left of Airflow's `retries`; anything else is tried again."""

    def evaluate(
        self, exception: BaseException, try_number: int, max_tries: int, context: Context | None = None
    ) -> RetryDecision:
        """Airflow's default for an exception that is not a watch's end."""
        if not isinstance(exception, ReplicaFailedError):
            return RetryDecision.default()
        decide = RetryDecision.fail if exception.final else RetryDecision.retry
        return decide(reason=str(exception))
