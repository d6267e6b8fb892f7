CREATE MATERIALIZED VIEW largest_orders AS
SELECT order_id, country, cents FROM payments ORDER BY cents DESC, order_id LIMIT 5;
