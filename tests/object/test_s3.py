"""The S3 driver on a real server: what goes over the wire, what is refused, and what nobody gets to see."""

import asyncio
import random
import time
import urllib.request
from contextlib import asynccontextmanager

import pytest

from millrace.domain.errors import InvalidInput, StoreError
from millrace.store.clock import boot_clock, system_clock
from millrace.store.object.blobs import Blobs, LostReply, RetryBudget, Won
from millrace.store.object.driver import UNCHANGED, Conflict, NoAnswer, Refused, Unavailable
from millrace.store.object.probe import UnsafeStore, probe
from millrace.store.object.s3 import BucketAddress, S3Blobs
from millrace.store.object.s3.admin import INDEXES, BucketAdmin
from millrace.store.object.s3.clock import ServerClock
from millrace.store.object.s3.replies import answer_of, no_answer
from tests.servers.proxy import Message, answer, running_proxy

QUICK = RetryBudget(attempts=5, first=0.001, longest=0.01)


@pytest.fixture
def prefix(request):
    return f"s3-{abs(hash(request.node.nodeid)):x}"


@asynccontextmanager
async def through(bucket, prefix, rule, timeout=10.0, check=False):
    """Blobs over a proxy with a rule, and the proxy."""
    async with running_proxy(bucket.server.endpoint, rule) as proxy:
        driver = S3Blobs(bucket.server.address(prefix, endpoint=proxy.endpoint), timeout=timeout, check=check)
        if not check:
            driver.quotes, driver.findings = bucket.quotes, bucket.findings
        try:
            yield Blobs(driver, patience=QUICK), proxy
        finally:
            await driver.close()


def on_put(number, act):
    """A rule for the n-th PUT; everything else passes."""
    seen = 0

    async def rule(request, forward):
        nonlocal seen
        if request.method == "PUT":
            seen += 1
            if seen == number:
                return await act(request, forward)
        return await forward(request)

    return rule


async def lose_the_reply(request, forward):
    await forward(request)


async def lose_the_request(request, forward):
    return None


async def fail_after(request, forward):
    await forward(request)
    return answer("500 Internal Server Error", "InternalError")


async def conflict(request, forward):
    return answer("409 Conflict", "ConditionalRequestConflict")


async def slow_down(request, forward):
    return answer("503 Slow Down", "SlowDown")


async def drop_the_tag(request, forward):
    reply = await forward(request)
    reply.headers.pop("etag", None)
    return reply


async def repeat(request, forward):
    await forward(request)
    return await forward(request)


@pytest.mark.parametrize(
    "act", [lose_the_reply, lose_the_request, fail_after, conflict, slow_down, drop_the_tag, repeat]
)
async def test_a_create_and_a_swap_end_in_certainty_whatever_the_wire_does(bucket, prefix, act):
    async with through(bucket, prefix, on_put(1, act)) as (blobs, proxy):
        created = await blobs.create("tasks/0/a", b"one")
        assert isinstance(created, Won)
        assert proxy.seen.count("PUT") <= 2, "one PUT per attempt: nothing below us repeats it"
    async with through(bucket, prefix, on_put(1, act)) as (blobs, proxy):
        swapped = await blobs.swap("tasks/0/a", b"two", created.tag)
        assert isinstance(swapped, Won) and swapped.tag != created.tag
        found = await blobs.get("tasks/0/a")
        assert found is not None and (found.body, found.tag) == (b"two", swapped.tag)


async def test_a_server_that_does_not_answer_is_waited_for_only_so_long(bucket, prefix):
    async def applied_in_silence(request, forward):
        await forward(request)
        await asyncio.sleep(30)

    async with through(bucket, prefix, on_put(1, applied_in_silence), timeout=2.0) as (blobs, _):
        assert isinstance(await blobs.create("tasks/0/a", b"one"), Won)
        assert blobs.tally == {"unclear": 1, "proved": 1, "won": 1}


async def test_a_broken_reading_is_repeated(bucket, prefix):
    seen = 0

    async def cut_short(request, forward):
        nonlocal seen
        reply = await forward(request)
        if request.method == "GET":
            seen += 1
            if seen == 1:
                reply.body = reply.body[:3]  # fewer bytes than the header promises
            if seen == 2:
                reply.headers.pop("etag")
        return reply

    async with through(bucket, prefix, cut_short) as (blobs, _):
        await blobs.put("data/a", b"a whole body")
        found = await blobs.get("data/a")
        assert found is not None and found.body == b"a whole body" and seen == 3


async def test_listing_and_deleting_get_over_a_server_error(bucket, prefix):  # O-33
    failed: set[str] = set()

    async def once_each(request, forward):
        if request.method in ("GET", "POST") and request.method not in failed:
            failed.add(request.method)
            return answer("500 Internal Server Error", "InternalError")
        return await forward(request)

    async with through(bucket, prefix, once_each) as (blobs, _):
        await blobs.put("ready/a", b"x")
        assert [entry.key for entry in (await blobs.list("ready/")).entries] == ["ready/a"]
        await blobs.delete(["ready/a"])
        assert (await blobs.list("ready/")).entries == () and failed == {"GET", "POST"}


def dropping(*names):
    async def rule(request: Message, forward):
        for name in names:
            request.headers.pop(name, None)
        return await forward(request)

    return rule


@pytest.mark.parametrize(
    ("header", "check"),
    [
        ("if-none-match", "creating an object that exists is refused"),
        ("if-match", "a swap with an old tag is refused"),
    ],
)
async def test_a_server_that_ignores_conditions_is_refused_at_connect(ministack_bucket, prefix, header, check):
    async with through(ministack_bucket, prefix, dropping(header), check=True) as (blobs, _):
        with pytest.raises(UnsafeStore, match="two workers could take one job") as refused:
            await blobs.connect()
        assert refused.value.check == check


async def test_a_server_that_wants_bare_tags_gets_them(bucket, prefix):
    """Ceph refuses every If-Match in quotation marks."""

    async def like_ceph(request, forward):
        if request.headers.get("if-match", "").startswith('"'):
            return answer("412 Precondition Failed", "PreconditionFailed")
        return await forward(request)

    async with through(bucket, prefix, like_ceph, check=True) as (blobs, _):
        await blobs.connect()
        assert blobs.driver.quotes is False
        created = await blobs.create("tasks/0/a", b"one")
        assert isinstance(await blobs.swap("tasks/0/a", b"two", created.tag), Won)


async def test_a_server_that_refuses_every_swap_is_refused(bucket, prefix):
    """Ceph 16 in a bucket with versions."""

    async def never_matches(request, forward):
        if "if-match" in request.headers:
            return answer("412 Precondition Failed", "PreconditionFailed")
        return await forward(request)

    async with through(bucket, prefix, never_matches, check=True) as (blobs, _):
        with pytest.raises(UnsafeStore, match="a swap with the right tag is done") as refused:
            await blobs.connect()
        assert ("?versioning=optional" in str(refused.value)) == bucket.findings.versioned


async def test_this_server_passes_a_thorough_probe(bucket, prefix):
    driver = bucket.driver(prefix)

    found = await probe(driver, racers=16, rounds=10)

    assert len(found.checks) == len(set(found.checks)) + 9  # ten rounds of one check
    assert found.conditional_reads
    assert (await Blobs(driver).list("")).entries == ()


async def test_a_bucket_without_versions_needs_the_override(s3_server, bucket, prefix, monkeypatch):
    if not s3_server.ours:
        assert bucket.findings.versioned or s3_server.given_bucket
        return
    loose = s3_server.address(prefix, bucket="millrace-plain")
    await asyncio.to_thread(BucketAdmin(loose).setup, versioning=False)
    strict = BucketAddress(**{**vars(loose), "versioning": "required"})

    with pytest.raises(UnsafeStore, match=r"the bucket keeps versions.*MILLRACE_ALLOW_NO_VERSIONING"):
        await S3Blobs(strict).connect()
    driver = S3Blobs(loose)
    await driver.connect()
    assert not driver.keeps_versions
    await driver.close()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"bucket": "no-such-bucket-here"}, "the bucket does not exist.*millrace init"),
        ({"endpoint": "http://127.0.0.1:1"}, "be reached"),
    ],
)
async def test_what_asking_again_cannot_mend_is_said_at_once(bucket, prefix, change, words):  # O-33
    address = BucketAddress(**{**vars(bucket.server.address(prefix)), **change})
    blobs = Blobs(S3Blobs(address, check=False), patience=QUICK)

    for attempt in (blobs.get("a"), blobs.create("a", b"x"), blobs.list(""), blobs.delete(["a"]), probe(blobs.driver)):
        with pytest.raises(StoreError, match=words):
            await attempt


async def test_a_lost_race_costs_one_look_and_brings_what_is_there(bucket, prefix):
    blobs = Blobs(bucket.driver(prefix))
    await blobs.create("tasks/0/a", b"theirs")
    blobs.requests.clear()

    lost = await blobs.create("tasks/0/a", b"mine")

    assert isinstance(lost, LostReply) and lost.current is not None and lost.current.body == b"theirs"
    assert blobs.requests == {"put": 1, "get": 1}
    assert await blobs.get_if_changed("tasks/0/a", lost.current.tag) is UNCHANGED


async def test_a_page_of_a_thousand_is_one_request(bucket, prefix):
    async with through(bucket, prefix, dropping()) as (blobs, proxy):
        direct = Blobs(bucket.driver(prefix))
        await direct.put_many({f"ready/{n:04}": b"" for n in range(1001)})
        page = await blobs.list("ready/", limit=1000)
        assert len(page.entries) == 1000 and page.truncated and proxy.seen == ["GET"]
        rest = await blobs.list("ready/", after=page.entries[-1].key)
        assert [entry.key for entry in rest.entries] == ["ready/1000"] and not rest.truncated
        await direct.delete([f"ready/{n:04}" for n in range(1001)])
        assert direct.requests["delete"] == 2


async def test_setting_a_bucket_up_twice_keeps_the_rules_of_others(s3_server, prefix):
    if not s3_server.ours:
        assert s3_server.given_bucket  # nobody's settings are touched there
        return
    admin = BucketAdmin(s3_server.address(prefix, bucket="millrace-rules"))
    client = admin._client

    def work():
        admin.setup(versioning=False)
        theirs = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 9}}
        client.put_bucket_lifecycle_configuration(Bucket="millrace-rules", LifecycleConfiguration={"Rules": [theirs]})
        done = [admin.setup(origins=["https://jobs.example.com"]) for _ in range(2)]
        rules = client.get_bucket_lifecycle_configuration(Bucket="millrace-rules")["Rules"]
        [cors] = client.get_bucket_cors(Bucket="millrace-rules")["CORSRules"]
        return done, rules, cors, client.get_bucket_versioning(Bucket="millrace-rules")["Status"]

    done, rules, cors, versioning = await asyncio.to_thread(work)

    assert versioning == "Enabled" and "versioning is on" in done[0]
    assert [rule["ID"] for rule in rules].count("theirs") == 1
    ours = {rule["Filter"]["Prefix"]: rule for rule in rules if rule["ID"] != "theirs"}
    assert set(ours) == {admin.address.prefix + name for name in INDEXES}
    assert {"ready/", "leases/", "workers/", "control/"} < set(INDEXES) and "tasks/" not in INDEXES
    assert all(rule["NoncurrentVersionExpiration"]["NoncurrentDays"] == 1 for rule in ours.values())
    assert cors["AllowedOrigins"] == ["https://jobs.example.com"]
    assert "ETag" in cors["ExposeHeaders"] and "DELETE" not in cors["AllowedMethods"]


def test_any_origin_is_no_origin(s3_server):
    for origin in ("*", "jobs.example.com"):
        with pytest.raises(InvalidInput, match="any page write"):
            BucketAdmin(s3_server.address("x")).setup(origins=[origin])


async def test_a_presigned_url_reads_one_object_without_credentials(bucket, prefix):
    driver = bucket.driver(prefix)
    await Blobs(driver).put("data/a", b"shared")
    url = driver.admin.presign("data/a", seconds=60)

    def fetch():
        with urllib.request.urlopen(url) as reply:
            return reply.read()

    assert await asyncio.to_thread(fetch) == b"shared"
    assert "X-Amz-Signature" in url or "Signature" in url
    with pytest.raises(InvalidInput, match="7 days"):
        driver.admin.presign("data/a", seconds=8 * 86_400)


# Addresses


ENV = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush-hush", "AWS_SESSION_TOKEN": "psst"}


def test_an_address_is_read_from_its_url_and_the_environment():
    full = BucketAddress.parse("s3://jobs/team/a?endpoint=http://127.0.0.1:9000/&region=eu-central-1", ENV)
    assert (full.bucket, full.prefix, full.endpoint, full.region) == (
        "jobs",
        "team/a/",
        "http://127.0.0.1:9000",
        "eu-central-1",
    )
    assert full.addressing == "path" and full.versioning == "required"
    assert (full.access_key, full.secret_key, full.session_token) == ("AKID", "hush-hush", "psst")

    short = BucketAddress.parse(
        "s3://jobs", {"S3_ENDPOINT": "https://s3.example.com", "S3_REGION": "x", "S3_ACCESS_KEY_ID": "k"}
    )
    assert (short.prefix, short.endpoint, short.region, short.access_key) == ("", "https://s3.example.com", "x", "k")
    aws = BucketAddress.parse("s3:///some/prefix", {"S3_BUCKET": "named", "QO_ALLOW_NO_VERSIONING": "1"})
    assert (aws.bucket, aws.prefix, aws.addressing, aws.versioning) == ("named", "some/prefix/", "virtual", "optional")
    assert aws.server == "https://s3.us-east-1.amazonaws.com"


def test_an_address_never_shows_its_keys():
    address = BucketAddress.parse("s3://jobs/a?endpoint=http://127.0.0.1:9000&versioning=optional", ENV)
    driver = S3Blobs(address)

    for text in (repr(address), str(address), repr(driver), driver.url, repr(Blobs(driver)), repr(driver._store)):
        assert not any(secret in text for secret in ENV.values())
    assert BucketAddress.parse(driver.url, ENV) == address


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x", "not by http://"),
        ("s3://", "names a bucket"),
        ("s3://key:hush@bucket/x", "carries no credentials"),
        ("s3://b?endpoint=http://key:hush@host", "endpoint carries no credentials"),
        ("s3://b?endpoint=host:9000", "endpoint is a URL"),
        ("s3://b?colour=red", "no option 'colour'"),
        ("s3://b?addressing=none", "'path' or 'virtual'"),
        ("s3://b?versioning=no", "'required' or 'optional'"),
        ("s3://b/a/../c", "'.' or '..'"),
    ],
)
def test_a_wrong_address_is_explained_without_its_secrets(url, words):
    with pytest.raises(InvalidInput) as refused:
        BucketAddress.parse(url, {})
    assert words in str(refused.value) and "hush" not in str(refused.value)


# Answers


class Said(Exception):
    pass


def said(status, code=""):
    return Said(f"Server returned non-2xx status code: {status} X: <Error><Code>{code}</Code></Error>")


def test_answers_mean_what_they_say():  # O-33
    assert answer_of(said(412, "PreconditionFailed"), "u") == Refused()
    assert answer_of(said(404, "NoSuchKey"), "u") == Refused()
    assert answer_of(said(409, "ConditionalRequestConflict"), "u") == Conflict()
    assert answer_of(said(500, "UnknownError"), "u") == Conflict()  # Ceph 16, of a write that another one overtook
    assert answer_of(said(500, "InternalError"), "u") == Unavailable("HTTP 500")
    assert answer_of(said(503, "SlowDown"), "u") == Unavailable("HTTP 503")
    assert answer_of(said(429), "u") == Unavailable("HTTP 429")
    assert isinstance(answer_of(Said("error sending request"), "u"), Unavailable)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        (403, "RequestTimeTooSkewed", "clock"),
        (404, "NoSuchBucket", "does not exist"),
        (501, "NotImplemented", "conditional writes are required"),
        (400, "EntityTooLarge", "EntityTooLarge"),
    ],
)
def test_errors_that_stay_are_raised_with_their_cause(status, code, words):  # O-33
    for meaning in (answer_of, no_answer):
        with pytest.raises(StoreError, match=words):
            meaning(said(status, code), "s3://b")


# The clock


def test_whole_seconds_narrow_each_other_down():
    local = 0
    clock = ServerClock(lambda: local)
    truth, chance = 1_700_000_000_437, random.Random(2)
    assert clock.due and clock.doubt == float("inf")
    for _ in range(30):
        sent = local
        local += chance.randrange(1, 8)
        date = (truth + local) // 1000 * 1000
        local += chance.randrange(1, 8)
        clock.observe(date, sent, local)
        assert abs(clock.now() - (truth + local)) <= clock.doubt + 1
        local += chance.randrange(50, 3000)

    assert clock.doubt < 60
    clock.observe((truth + local) // 1000 * 1000, local, local)
    local += 59_000
    early = clock.due
    local += 1_000
    in_time = clock.due
    clock.put_off()
    assert (early, in_time, clock.due) == (False, True, False)


def test_a_server_whose_clock_was_set_is_believed_at_once():
    local = 0
    clock = ServerClock(lambda: local)
    clock.observe(1_000_000, 0, 0)
    local = 1_000
    clock.observe(9_000_000, 1_000, 1_000)

    assert abs(clock.now() - 9_000_000) <= 1_000


@pytest.mark.parametrize("jump", [3_600_000, -3_600_000])
def test_a_machine_that_slept_or_whose_clock_was_set_asks_the_server_before_it_believes_itself(jump):
    """Where the steady clock stands still during a sleep, the time of day tells of it."""
    local, wall = 0, 1_000_300
    clock = ServerClock(lambda: local, wall=lambda: wall)
    for _ in range(40):
        local, wall = local + 337, wall + 337
        clock.observe((1_000_000 + local) // 1_000 * 1_000, local, local)
    assert (clock.due, clock.doubt < 500) == (False, True)

    wall += jump
    assert (clock.due, clock.doubt) == (True, float("inf"))
    clock.put_off()
    still = clock.due
    assert still  # nothing is known, and an answer that did not come is no reason to believe it
    truth = 1_000_000 + local + max(0, jump)
    clock.observe(truth // 1_000 * 1_000, local, local)
    assert abs(clock.now() - truth) <= 1_000 and not clock.due


def test_the_steady_clock_goes_on_while_the_machine_sleeps():
    before = time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1_000_000
    assert before <= boot_clock() <= before + 60_000
    assert ServerClock().local is boot_clock


async def test_a_machine_that_slept_and_cannot_ask_decides_nothing_by_the_clock(bucket, prefix):
    driver = bucket.driver(prefix)
    slept = 0
    driver.clock = ServerClock(wall=lambda: system_clock() + slept)
    await driver.now()
    slept = 3_600_000
    driver.address = BucketAddress(**{**vars(driver.address), "endpoint": "http://127.0.0.1:1"})

    with pytest.raises(NoAnswer, match="did not return its time"):
        await driver.now()


@pytest.mark.parametrize("off", [-90_000, -300, 0, 300, 90_000])
def test_the_time_of_day_here_is_the_guess_as_far_as_the_server_does_not_say_otherwise(off):
    """BO-16: two processes that have asked once agree, and a wrong clock is off by a second at most."""
    clock = ServerClock(lambda: 7, wall=lambda: 1_000_400 + off)
    clock.observe(1_000_000, 7, 7)  # so the server's time is between 1,000,000 and 1,001,000

    assert clock.now() == min(max(1_000_400 + off, 1_000_000), 1_001_000)


async def test_the_servers_time_is_asked_for_and_then_remembered(bucket, prefix):
    driver = bucket.driver(prefix)
    blobs = Blobs(driver)

    first = await blobs.now()
    second = await blobs.now()

    assert driver.requests["clock"] == 1 and second >= first
    assert driver.clock.doubt <= 1_500
    assert await Blobs(S3Blobs(driver.address, clock=lambda: 42, check=False)).now() == 42


async def test_a_server_that_tells_no_time_is_an_error_only_at_first(prefix, bucket):
    address = BucketAddress(**{**vars(bucket.server.address(prefix)), "endpoint": "http://127.0.0.1:1"})
    driver = S3Blobs(address, check=False)
    with pytest.raises(StoreError, match="did not return its time"):
        await Blobs(driver, patience=QUICK).now()
    driver.clock.observe(5_000, 0, 0)

    assert await driver.now() > 0


async def test_a_connection_is_not_taken_into_a_forked_child(bucket, prefix, monkeypatch):
    blobs = Blobs(bucket.driver(prefix))
    await blobs.put("a", b"x")
    monkeypatch.setattr("os.getpid", lambda: -1)

    for attempt in (blobs.get("a"), blobs.put("a", b"y"), blobs.list("")):
        with pytest.raises(StoreError, match="connect in the child process"):
            await attempt


async def test_waiting_for_a_bucket_is_sleeping(bucket, prefix):
    blobs = Blobs(bucket.driver(prefix))

    assert await blobs.wait_for_change("ready/", 0.01, since=blobs.mark("ready/")) is False


async def test_a_process_probes_a_bucket_once(bucket, prefix):
    """Not at every connect, and not at all for reading."""
    address = bucket.server.address(prefix)
    first, second, reader = S3Blobs(address), S3Blobs(address), S3Blobs(bucket.server.address(prefix + "-other"))
    await first.connect()
    await second.connect()
    await reader.connect_for_reading()

    assert first.requests["put"] >= 10 and sum(second.requests.values()) == sum(reader.requests.values()) == 0
    assert (second.findings, second.quotes) == (first.findings, first.quotes)
    for driver in (first, second, reader):
        await driver.close()
