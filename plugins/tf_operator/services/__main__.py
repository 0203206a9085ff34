"""`python -m tf_operator.services demo | airflow`; `pools` and `clean` are run by the services themselves."""

from __future__ import annotations

import sys

from tf_operator.errors import TfOperatorError


def main(argv: list[str]) -> int:
    """Run one of the commands; its exit code."""
    match argv:
        case ["demo"]:
            from tf_operator.services.demo import demo

            return demo()
        case ["airflow"]:
            from tf_operator.services.demo import foreground

            return foreground()
        case ["pools"]:
            return _pools()
        case ["clean"]:
            return _clean()
    sys.stderr.write("usage: python -m tf_operator.services demo | airflow\n")
    return 2


def _pools() -> int:
    """As `tf-operator pools`, but through the API: what starts here need not load Airflow once more."""
    from tf_operator import settings
    from tf_operator.cli.pools import count_gpus
    from tf_operator.pools import wanted_pools
    from tf_operator.services.jobs import connect

    project = settings.project_dir()
    try:
        api = connect(project)
        for pool in wanted_pools(project / "configs" / "pools.yaml", count_gpus):
            api.set_pool(pool.name, pool.slots, pool.description, pool.include_deferred)
    except TfOperatorError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _clean() -> int:
    """End and remove the programs nobody watches any more, now that Airflow is gone."""
    from tf_operator import settings
    from tf_operator.runners.leftovers import clean, leftovers

    state_dir = settings.state_dir()
    for line in clean(state_dir, leftovers(state_dir), keep_output=True):
        sys.stderr.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
