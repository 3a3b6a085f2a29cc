"""The demo with Kafka: Debezium records of 2013 become an upsert topic, tables, a join, and a topic again.

`python -m examples.flights.kafka` starts a broker and three processes: a supervisor (what the user sees), a
producer that stands in for Debezium, and a Spark driver with four streaming queries, which gets killed.
"""
