-- ending: what follows from an end: hooks are enqueued, dependents told, records pruned (domain/step.py).

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
  local place = S.place_of(job)
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
  S.free_key(job, true)
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
