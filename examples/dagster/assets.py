"""Assets that are made by Millrace workers. Run `millrace worker --app tasks:app` of ../airflow beside it."""

import dagster as dg

from millrace.contrib.dagster import MillraceResource


@dg.asset
def resized(context: dg.AssetExecutionContext, millrace: MillraceResource) -> list[str]:
    pictures = [{"picture": f"{number}.jpg", "width": 200} for number in range(3)]
    return millrace.run(context, "resize", pictures, options={"max_attempts": 3})


@dg.asset
def album(context: dg.AssetExecutionContext, millrace: MillraceResource, resized: list[str]) -> dict:
    return millrace.run(context, "album", {"day": "2026-01-01", "pictures": resized})


definitions = dg.Definitions(
    assets=[resized, album],
    resources={"millrace": MillraceResource(url=dg.EnvVar("MILLRACE_URL"))},
)
