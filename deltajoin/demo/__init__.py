"""The demo: a year of flights joined with the weather while both change, through a crash.

`python -m deltajoin.demo` starts three processes: a supervisor (what the user sees), a writer that replays
2013 as changes of two managed tables, and a Spark driver with one streaming query, which is killed half-way.
"""
