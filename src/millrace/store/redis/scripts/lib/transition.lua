-- transition: the state machine of one job. Each function changes the job and logs an event.
-- Repeats claim, reclaim, settle, bury, cancel, replay, archive and remove of domain/rules/transition.py.
local MOST_ATTEMPTS = 50
local MOST_CARRIED = 100

local function put_error(job, failure)
  if failure or job.error then
    T.hput(KEY.error, job.seq, failure or false)
  end
  job.error = failure ~= nil and failure ~= false
end

local function put_result(job, body)
  if body or job.result then
    T.hput(KEY.result, job.seq, body or false)
  end
  job.result = body ~= nil and body ~= false
end

local function put_progress(job, body)
  if body or job.progress then
    T.hput(KEY.progress, job.seq, body or false)
  end
  job.progress = body ~= nil and body ~= false
end

function X.put_log(job, body)
  T.hput(KEY.log, job.seq, body)
  job.log = true
end

local function finish(job)
  job.finished_at = now
  job.holds, job.cancel_requested = false, false
  put_progress(job, nil)
end

-- Add a failed attempt to the list; of too many, the first and the latest are kept.
local function remember(job, change, duration)
  local key = P .. 'attempts:' .. job.seq
  if call('LLEN', key) >= MOST_ATTEMPTS then
    call('LSET', key, 1, '')
    call('LREM', key, 1, '')
  end
  call('RPUSH', key, char(0x95) .. pack(job.attempt, now, change.error, duration, job.worker))
  job.attempts = true
end

-- Add the jobs that a run has enqueued; of too many, the latest are kept.
local function carry(job, specs)
  local carried = {}
  for _, id in ipairs(job.carried or {}) do
    carried[#carried + 1] = id
  end
  for _, spec in ipairs(specs) do
    carried[#carried + 1] = spec.id
  end
  while #carried > MOST_CARRIED do
    table.remove(carried, 1)
  end
  job.carried = carried
end

function X.claim(job, worker, lease_id, lease)
  job.state = 'running'
  job.attempt = job.attempt + 1
  job.holds = false
  job.started_at = now
  job.worker, job.lease_id, job.lease_until = worker, lease_id, now + lease
  put_progress(job, nil)
  T.log(job, 'claimed', worker, lease_id)
end

-- Give the lease to another worker. `job.worker` stays the worker that ran the job.
function X.reclaim(job, worker, lease_id, lease)
  job.lease_id, job.lease_until = lease_id, now + lease
  T.log(job, 'reclaimed', worker, lease_id, nil, nil, job.worker)
end

-- How long the run took, as its worker measured it. A lost run counts until it is settled.
local function duration_of(job, change)
  if change.duration or change.stalled == 0 or not job.started_at then
    return change.duration
  end
  return max(0, now - job.started_at)
end

local RETURNS = { retry = true, snooze = true, release = true }
local KIND = { complete = 'completed', retry = 'retried', snooze = 'snoozed', release = 'released', bury = 'buried',
  cancel = 'cancelled' }

function X.settle(job, change)
  local verb = change.verb
  if job.cancel_requested and RETURNS[verb] then
    verb = 'cancel'
  end
  local worker, lease_id, delay, reason = job.worker, job.lease_id, nil, change.reason
  local duration = duration_of(job, change)
  job.failures = job.failures + change.failed
  job.stalls = job.stalls + change.stalled
  if change.failed > 0 then
    remember(job, change, duration)
  end
  if change.jobs then
    carry(job, change.jobs)
  end
  job.worker, job.lease_id, job.lease_until = nil, nil, nil
  if verb == 'complete' then
    job.state = 'completed'
    put_error(job, nil)
    job.reason = nil
    local keep = change.keep_result or job.keep_result
    if keep == 0 then
      job.result_expired = change.result ~= nil
    else
      put_result(job, change.result)
      job.result_until = keep and keep >= 0 and change.result and now + keep or nil
    end
    finish(job)
  elseif verb == 'bury' then
    job.state = 'dead'
    put_error(job, change.error)
    job.reason = change.reason
    finish(job)
  elseif verb == 'cancel' then
    job.state = 'cancelled'
    reason = change.reason or 'requested'
    job.reason = reason
    finish(job)
  else
    job.state = 'waiting'
    delay = change.delay
    if verb == 'release' and delay == 0 then
      job.available_at = math.min(job.available_at, now)  -- it keeps its place in the order of claims
    else
      job.available_at = now + delay
    end
    if verb == 'retry' then
      put_error(job, change.error)
      job.holds = T.line_name(job) ~= nil and job.retry_blocks
    elseif verb == 'snooze' then
      job.snoozes = job.snoozes + 1
    else
      job.releases = job.releases + 1
    end
  end
  T.log(job, KIND[verb], worker, lease_id, duration, delay, reason, change.error)
end

-- Bury a waiting job without a run: it expired, or a parent died or was cancelled.
function X.bury(job, reason, failure, parent)
  job.state = 'dead'
  job.reason, job.failed_parent = reason, parent
  put_error(job, failure)
  finish(job)
  T.log(job, 'buried', nil, nil, nil, nil, reason, failure)
end

function X.cancel(job, reason)
  job.state = 'cancelled'
  job.reason = reason
  job.worker, job.lease_id, job.lease_until = nil, nil, nil
  finish(job)
  T.log(job, 'cancelled', nil, nil, nil, nil, reason)
end

function X.replay(job, reason)
  job.state = 'waiting'
  job.available_at = now
  job.expires_at = job.expires and now + job.expires or nil
  job.finished_at, job.next_retry_at = nil, nil
  job.failures, job.stalls = 0, 0
  job.replays = job.replays + 1
  if reason ~= 'auto_retry' then
    job.auto_retries = 0
  end
  job.archived, job.cancel_requested, job.result_expired = false, false, false
  put_result(job, nil)
  put_error(job, nil)
  job.result_until, job.reason, job.failed_parent, job.carried = nil, nil, nil, nil
  T.log(job, 'replayed', nil, nil, nil, nil, reason)
end

function X.archive(job, archived)
  job.archived = archived
  T.log(job, archived and 'archived' or 'unarchived')
end

-- Log the last event of a record that is deleted.
function X.remove(job, kind, reason)
  T.log(job, kind, nil, nil, nil, nil, reason)
end
