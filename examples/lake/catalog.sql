-- Names for the lake's tables in the catalog of Hive, Unity or a platform: spark-sql -f catalog.sql
-- The files stay where they are; `DROP TABLE` removes only the name.
CREATE SCHEMA IF NOT EXISTS sea;
CREATE TABLE IF NOT EXISTS sea.silver USING delta LOCATION '/srv/lake/silver';
CREATE TABLE IF NOT EXISTS sea.gold USING delta LOCATION '/srv/lake/gold';
