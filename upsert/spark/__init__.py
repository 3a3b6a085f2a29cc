"""What is known of Spark: its sessions and JVM, columns and batches of tables in it, queries and tasks."""
