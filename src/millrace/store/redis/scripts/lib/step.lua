-- step: what a change of one job means for the others, as in domain/step.py: lines elect, dependents are unblocked or
-- die, keys are freed, hooks are enqueued. All of it in the same script, so a crash leaves either all or nothing.

local function place_of(job)
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
    S.emptied[place_of(job)] = nil
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
local function free_key(job, retained_too)
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
  free_key(job, false)
  local live = row.live
  if job.lane and line then
    live = line.live
  end
  if live == 0 and not job.hook then
    S.emptied[place_of(job)] = job
  end
  S.ended[#S.ended + 1] = job
end

-- ── consequences ────────────────────────────────────────────────────────────────────────────────

local function a_hook(name, task, queue, body)
  return { id = name, token = name, task = task, queue = queue, priority = 0, delay = 0, lease = SPEC.lease,
    keep_result = SPEC.keep_result, retry_blocks = true, scope = 'live', on_dependency = 'bury', on_hit = 'keep',
    reuse = true, hook = true, body = body }
end

-- The facts of a death, and the spec it is about: whoever reads the hook puts its payload together from them.
local function dead_letter_hook(job)
  local task = job.on_dead_letter
  if job.state ~= 'dead' or not task or job.hook then
    return nil
  end
  local name = 'dead-letter-' .. job.queue .. '-' .. format('%.0f', job.seq) .. '-' .. job.events
  local failure = job.error and T.hget(KEY.error, job.seq) or nil
  local facts = char(0x9b) .. pack(name, task, job.queue, job.seq, job.reason or 'unknown', failure, job.attempt,
    job.failures, job.enqueued_at, job.finished_at, job.lane)
  local body = T.hget(KEY.spec, job.seq)
  return a_hook(name, task, job.queue, '\1' .. format('%08d', #facts) .. facts .. body)
end

-- Told by the one job whose end left nothing live; not if another took its place in the same step.
local function empty_hook(job)
  local place = place_of(job)
  if S.emptied[place] ~= job then
    return nil
  end
  S.emptied[place] = nil
  local row = T.queue(job.queue)
  local line = job.lane and S.line_of(job)
  local task = row.name ~= S.wiped and row.settings.on_empty
  if not task then
    return nil
  end
  local name = 'empty-' .. job.queue .. '-' .. format('%.0f', job.seq) .. '-' .. job.events
  local facts = char(0x95) .. pack(name, task, job.queue, job.lane, line and line.processed or row.processed)
  return a_hook(name, task, job.queue, '\2' .. facts .. char(job.seq % 256))
end

function S.bury(job, reason, failure)
  X.bury(job, reason, failure)
  S.finished(job, 'waiting')
end

-- Whoever reads it puts it into words.
function S.dependency_failure(parent, state)
  return '\1' .. state .. ':' .. parent
end

local function unblock(child)
  local row = T.queue(child.queue)
  row.blocked = row.blocked - 1
  T.put_queue(row)
  T.log(child, 'unblocked')
  S.place(child, S.line_of(child))
end

local function parent_ended(seq, parent, state)
  local child = T.by_seq(seq)
  if not child or child.state ~= 'waiting' then
    return
  end
  if state == 'completed' or child.on_dependency == 'run' then
    T.drop_dependency(parent, seq)
    child.blocked = child.blocked - 1
    if child.blocked > 0 then
      T.update(child)
    else
      unblock(child)
    end
  elseif child.on_dependency == 'bury' then
    S.bury(child, 'dependency_failed', S.dependency_failure(parent, state))
  end
end

-- Who waits for this job; who came after the next generation of its id waits for that one.
local function orphans(job)
  local children = T.children(job.id)
  if #children == 0 then
    return children
  end
  local heir = T.by_id(job.id)
  if not heir or heir.seq == job.seq then
    return children
  end
  local mine = {}
  for _, seq in ipairs(children) do
    if seq < heir.seq then
      mine[#mine + 1] = seq
    end
  end
  return mine
end

function S.uncount_finished(job)
  local row = T.queue(job.queue)
  row[job.state] = row[job.state] - 1
  if job.archived then
    row.archived = row.archived - 1
    if job.state == 'dead' then
      row.archived_dead = row.archived_dead - 1
    end
  end
  T.put_queue(row)
end

-- Delete a finished job's record; what remains is its history and, for dependents, how it ended.
function S.remove(job, kind, reason)
  S.uncount_finished(job)
  free_key(job, true)
  X.remove(job, kind, reason)
  T.add_past(job)
  T.delete(job)
end

local function prune_at_once(job)
  local settings = T.queue(job.queue).settings
  local keep = settings.keep_completed
  if job.state == 'dead' then
    keep = settings.keep_dead
  end
  if keep == 0 and CLASS[job.state] > 0 and T.by_seq(job.seq) then
    S.remove(job, 'pruned', 'retention')
  end
end

-- Work off what ended in this step; a loop, so that a chain of ten thousand deaths is no recursion.
function S.carry_out()
  while S.first <= #S.ended do
    local job = S.ended[S.first]
    S.ended[S.first] = false
    S.first = S.first + 1
    if job.state ~= 'waiting' then
      if job.state == 'dead' or next(S.emptied) ~= nil then
        local hooks = {}
        hooks[#hooks + 1] = dead_letter_hook(job)
        hooks[#hooks + 1] = empty_hook(job)
        if #hooks > 0 then
          A.enqueue(hooks, true)
        end
      end
      for _, child in ipairs(orphans(job)) do
        parent_ended(child, job.id, job.state)
      end
      T.nobody_waits_for(job.id)
      prune_at_once(job)
    end
  end
end
