"""Extract, transform, load with Spark: rows become jobs, workers do what SQL cannot, and results become a table.

Spark is good at reading and joining tables. It is not good at calling a slow service once per row, with retries and
limits. Here it writes the rows as jobs, workers call the service, and Spark reads the results back.

Run it: python spark_etl.py
"""

import asyncio
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from millrace import App

HERE = Path.cwd()
URL = f"sqlite:///{HERE / 'jobs.db'}"
app = App(URL)


@app.task(keep_result="7d", max_attempts=5)
async def geocode(order: int, city: str) -> dict[str, int | str]:
    await asyncio.sleep(0)  # the call of a service
    return {"order": order, "country": {"Berlin": "DE", "Paris": "FR"}.get(city, "unknown")}


def extract(spark: SparkSession) -> DataFrame:
    rows = [(1, "Berlin", 20.0), (2, "Paris", 30.0), (3, "Berlin", 5.0)]
    return spark.createDataFrame(rows, "order int, city string, amount double")


def enqueue(orders: DataFrame) -> None:
    write = orders.select("order", "city").write.format("millrace").mode("append").option("url", URL)
    write.option("task", "geocode").option("idColumns", "order").save()  # a repeated run enqueues nothing twice


def results(spark: SparkSession) -> DataFrame:
    jobs = spark.read.format("millrace").options(url=URL, table="jobs", columns="state,result").load()
    done = jobs.where("state = 'completed'").select(F.col("result").cast("string").alias("json"))
    return done.select(F.from_json("json", "order int, country string").alias("row")).select("row.*")


def main() -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    orders = extract(spark)
    with app.sync:
        enqueue(orders)
        app.sync.run(app.worker(burst=True).run(handle_signals=False))
    totals = orders.join(results(spark), "order").groupBy("country").agg(F.sum("amount").alias("amount"))
    totals.write.mode("overwrite").parquet(str(HERE / "totals"))
    for row in spark.read.parquet(str(HERE / "totals")).orderBy("country").collect():
        print(row.country, row.amount)
    spark.stop()


if __name__ == "__main__":
    main()
