"""The services of the demo and the tests: a real Airflow and a real OpenBao, started and ended whole."""
