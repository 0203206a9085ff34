"""Following a run: what passes, and what ends it."""

from __future__ import annotations

import pytest
from api_server import serving

from tf_operator.errors import ApiError
from tf_operator.services.api import AirflowApi
from tf_operator.services.follow import PlainProgress, follow

RUN = {"dag_id": "mine", "dag_run_id": "r", "state": "success"}
NO_TASKS = (200, {"task_instances": [], "total_entries": 0})


@pytest.mark.parametrize("code", [503, 502, 429])
def test_a_proxy_that_is_busy_for_a_moment_is_no_end(code: int) -> None:
    with serving() as server:
        server.answers += [(code, {"detail": "upstream"}), (200, RUN), NO_TASKS]
        assert follow(AirflowApi(server.url), "mine", "r", PlainProgress(print), every=0.01).state == "success"


def test_a_run_that_is_gone_is_an_end() -> None:
    with serving() as server:
        server.answers += [(404, {"detail": "not found"})]
        with pytest.raises(ApiError, match="not found"):
            follow(AirflowApi(server.url), "mine", "r", PlainProgress(print), every=0.01)
