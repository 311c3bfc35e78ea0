SELECT date, count(*) AS orders, sum((payload->>'$.total')::DECIMAL(18, 2)) AS total
FROM {{ source('lake', 'silver') }}
WHERE event_type = 'order.created'
GROUP BY date
