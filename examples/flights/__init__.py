"""The demo: a year of flights joined with weather, airports and planes while they change, through a crash.

`python -m examples.flights` starts three processes: a supervisor (what the user sees), a writer that replays
2013 as changes of managed tables, and a Spark driver with one streaming query, which is killed half-way. With
`--kafka` the writer stands in for Debezium, and the driver has four queries, between topics and tables.
"""
