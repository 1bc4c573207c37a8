-- step: the consequences of a change of one job: lines elect a member, dependents are unblocked or buried, keys are freed,
-- hooks are enqueued. All in one script, so a crash leaves either all or nothing.
-- Repeats Step.added, Step.claimed, Step.returned, Step.finished and Step.elect of domain/rules/step.py; next_retry of
-- domain/rules/dead.py.

function S.place_of(job)
  return job.queue .. ':' .. (job.lane or '')
end

function S.line_of(job)
  local name = T.line_name(job)
  if not name then
    return nil
  end
  return T.line(job.queue, name)
    or { queue = job.queue, name = name, waiting = 0, live = 0, processed = 0, died = 0 }
end

local function is_paused(line)
  if sub(line.name, 1, 2) ~= 'l:' then
    return false
  end
  local lane = tonumber(sub(line.name, 3))
  for _, paused in ipairs(T.queue(line.queue).settings.paused_lanes) do
    if paused == lane then
      return true
    end
  end
  return false
end

local function next_of(line)
  if is_paused(line) then
    return nil
  end
  if line.holder then
    local holder = T.by_seq(line.holder)
    return holder and holder.state == 'waiting' and line.holder or nil
  end
  return T.members(line.queue, line.name, 1)[1]
end

local function set_open(seq, open)
  local job = T.by_seq(seq)
  if job and job.state == 'waiting' then
    job.open = open
    T.update(job)
  end
end

-- Make the member of a line that may run next open. Every change of a line calls this in the same step.
function S.elect(line)
  local wanted = next_of(line)
  if wanted ~= line.open then
    if line.open then
      set_open(line.open, false)
    end
    if wanted then
      set_open(wanted, true)
    end
    line.open = wanted
  end
  if line.live == 0 and sub(line.name, 1, 2) == 'g:' then
    T.drop_line(line)
  else
    T.put_line(line)
  end
end

-- Put a waiting, unblocked job where it belongs: open at once, in its line, or outside its line until it is due.
function S.place(job, line)
  if not line then
    job.open = true
    T.update(job)
    return
  end
  local leaves_until_due = not job.lane or (job.failures > 0 and not job.retry_blocks)
  job.in_line = not job.holds and not (leaves_until_due and job.available_at > now)
  T.update(job)
  S.elect(line)
end

-- Count a new or replayed job, which waits from now on, and put it where it belongs.
function S.added(job)
  local row = T.queue(job.queue)
  row.waiting = row.waiting + 1
  if not job.hook then
    row.live = row.live + 1
    S.emptied[S.place_of(job)] = nil
  end
  local line = S.line_of(job)
  if line then
    line.waiting = line.waiting + 1
    line.live = line.live + 1
  end
  if job.blocked > 0 then
    row.blocked = row.blocked + 1
    T.update(job)
    if line then
      T.put_line(line)
    end
  else
    S.place(job, line)
  end
  T.put_queue(row)
end

local function task_running(task, by)
  local row = T.task(task)
  if row then
    row.running = row.running + by
    T.put_task(row)
  end
  return row
end

-- Update counters and line after a claim.
function S.claimed(job, row)
  job.open, job.in_line = false, false
  row.waiting = row.waiting - 1
  row.running = row.running + 1
  row.taken = row.taken + 1
  task_running(job.task, 1)
  local line = S.line_of(job)
  if line then
    line.holder, line.open = job.seq, nil
    line.waiting = line.waiting - 1
    T.put_line(line)
  end
  T.update(job)
end

-- Update the running counters of queue and task, and wake workers that wait for room under `max_running`.
local function run_ended(job, row)
  row.running = row.running - 1
  if row.settings.max_running then
    T.wake(job.queue, nil, 1)
  end
  if task_running(job.task, -1) then
    T.wake(nil, job.task, 1)
  end
end

-- Update counters and line when a run ended and the job waits again. In backoff it may hold its line.
function S.returned(job)
  local row = T.queue(job.queue)
  run_ended(job, row)
  row.waiting = row.waiting + 1
  T.put_queue(row)
  local line = S.line_of(job)
  if line then
    line.waiting = line.waiting + 1
    if not job.holds then
      line.holder = nil
    end
  end
  S.place(job, line)
end

local function count_end(row, job, was)
  if was == 'running' then
    run_ended(job, row)
  else
    row.waiting = row.waiting - 1
  end
  if not job.hook then
    row.live = row.live - 1
  end
  row[job.state] = row[job.state] + 1
  if job.state == 'completed' then
    row.processed = row.processed + 1
  elseif job.state == 'dead' then
    row.died = row.died + 1
  end
end

local function leave(line, job, was)
  line.live = line.live - 1
  if was == 'waiting' then
    line.waiting = line.waiting - 1
  end
  if job.state == 'completed' then
    line.processed = line.processed + 1
  elseif job.state == 'dead' then
    line.died = line.died + 1
  end
  if line.holder == job.seq then
    line.holder = nil
  end
  if line.open == job.seq then
    line.open = nil
  end
  S.elect(line)
end

-- Free the job's key if the job holds it.
function S.free_key(job, retained_too)
  if not job.key then
    return
  end
  local hold = T.hold(job.queue, job.key)
  if hold and hold.seq == job.seq and (hold.scope == 'live' or (retained_too and hold.scope == 'retained')) then
    T.drop_hold(hold)
  end
end

-- When auto-retry replays a dead job; nil for never. A job buried for a failed parent is replayed with that parent.
function S.next_retry(job)
  local settings = T.queue(job.queue).settings
  local may = not job.failed_parent and job.auto_retries < settings.auto_retries and job.finished_at
  return may and job.finished_at + settings.auto_retry_delay or nil
end

-- Apply the end of a job to its queue, line and key, and note it for `carry_out`.
function S.finished(job, was)
  local row = T.queue(job.queue)
  count_end(row, job, was)
  if job.blocked > 0 then
    for _, parent in ipairs(T.parents(job.seq)) do
      T.drop_dependency(parent, job.seq)
      T.drop_if_unawaited(parent)
    end
    row.blocked = row.blocked - 1
    job.blocked = 0
  end
  job.open, job.in_line = false, false
  if job.state == 'dead' then
    job.next_retry_at = S.next_retry(job)
  end
  T.put_queue(row)
  T.update(job)
  local line = S.line_of(job)
  if line then
    leave(line, job, was)
  end
  S.free_key(job, false)
  local live = row.live
  if job.lane and line then
    live = line.live
  end
  if live == 0 and not job.hook then
    S.emptied[S.place_of(job)] = job
  end
  S.ended[#S.ended + 1] = job
end
