-- step: what a change of one job means for the others, as in domain/step.py: lines elect, dependents are unblocked or
-- die, keys are freed, hooks are enqueued. All of it in the same script, so a crash leaves either all or nothing.

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

-- Open the one member that may run next; whatever changes a line calls this in the same step.
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

-- Give a waiting, unblocked job its place: open at once, or in its line, or outside it until due.
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

-- A new or replayed job waits from now on.
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

-- Counters and line after a claim.
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

-- A place under `max_running` is free again; whoever waits for it is woken.
local function run_ended(job, row)
  row.running = row.running - 1
  local task = task_running(job.task, -1)
  if row.settings.max_running or task then
    T.stir(job.queue, 1)
  end
end

-- A run ended and the job waits again: its line keeps it as holder or lets others go.
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

-- Only the owner frees a key, and only by its own end.
function S.free_key(job, retained_too)
  if not job.key then
    return
  end
  local hold = T.hold(job.queue, job.key)
  if hold and hold.seq == job.seq and (hold.scope == 'live' or (retained_too and hold.scope == 'retained')) then
    T.drop_hold(hold)
  end
end

-- Everything that the end of this job means for its queue, line, key and dependents.
function S.finished(job, was)
  local row = T.queue(job.queue)
  count_end(row, job, was)
  if job.blocked > 0 then
    for _, parent in ipairs(T.parents(job.seq)) do
      T.drop_dependency(parent, job.seq)
      T.nobody_waits_for(parent)
    end
    row.blocked = row.blocked - 1
    job.blocked = 0
  end
  job.open, job.in_line = false, false
  if job.state == 'dead' then
    local again = job.auto_retries < row.settings.auto_retries
    job.next_retry_at = again and job.finished_at + row.settings.auto_retry_delay or nil
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
