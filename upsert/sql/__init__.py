"""SQL text to statements: words, columns, queries and statements as values. It knows no catalog."""
