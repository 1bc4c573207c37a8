import os, pytest
from tests.object.test_sweep_races import test_no_job_is_lost_or_run_by_two_while_an_impatient_sweep_goes_on as f
@pytest.mark.parametrize("seed", [int(x) for x in os.environ["SEEDS"].split(",")])
async def test_seed(seed):
    await f(seed)
