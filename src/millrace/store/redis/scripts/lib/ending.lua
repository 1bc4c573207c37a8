-- ending: the consequences of a job's end: hooks, dependents, pruning.
-- Repeats Step.carry_out, Step.parent_ended and Step.remove of domain/rules/step.py; dead_letter_hook, empty_hook and
-- _hook_id of domain/rules/dead.py.

local function a_hook(name, task, queue, body)
  return { id = name, token = name, task = task, queue = queue, priority = 0, delay = 0, lease = SPEC.lease,
    keep_result = SPEC.keep_result, retry_blocks = true, scope = 'live', on_dependency = 'bury', on_hit = 'keep',
    reuse = true, hook = true, body = body }
end

local function hook_id(kind, job)
  local identity = job.id .. format('\n%.0f\n%.0f', job.generation, job.enqueued_at)
  return kind .. '-' .. job.queue .. '-' .. redis.sha1hex(identity) .. '-' .. job.events
end

-- The values of a dead job and its spec. Python makes the payload of the hook from them (decode.py).
local function dead_letter_hook(job)
  local task = job.on_dead_letter
  if job.state ~= 'dead' or not task or job.hook then
    return nil
  end
  local name = hook_id('dead-letter', job)
  local failure = job.error and T.hget(KEY.error, job.seq) or nil
  local facts = char(0x9b) .. pack(name, task, job.queue, job.seq, job.reason or 'unknown', failure, job.attempt,
    job.failures, job.enqueued_at, job.finished_at, job.lane)
  local body = T.hget(KEY.spec, job.seq)
  return a_hook(name, task, job.queue, '\1' .. format('%08d', #facts) .. facts .. body)
end

-- The `on_empty` job if this job's end left the queue or lane empty, and no other was added since.
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
  local name = hook_id('empty', job)
  local facts = char(0x95) .. pack(name, task, job.queue, job.lane, line and line.processed or row.processed)
  return a_hook(name, task, job.queue, '\2' .. facts .. char(job.seq % 256))
end

function S.bury(job, reason, failure, parent)
  X.bury(job, reason, failure, parent)
  S.finished(job, 'waiting')
end

-- Repeats keep_for_children and recheck_after of domain/rules/transition.py.
local function keep_result(parent)
  if parent.state == 'completed' and parent.result and not parent.has_dependents then
    parent.has_dependents = true
    parent.result_until = parent.result_until or now + max(60000, floor((now - (parent.finished_at or now)) / 10))
    T.update(parent)
  end
end

-- Keep the results of the job's parents until it has ended, even if their keep_result passes earlier.
function S.keep_results_for(job)
  for _, id in ipairs(T.after(job)) do
    local parent = T.by_id(id)
    if parent then
      keep_result(parent)
    end
  end
end

-- The state of a parent. An unknown id counts as waiting: it may still be enqueued.
function S.state_of(id)
  local job = T.by_id(id)
  if job then
    return job.state
  end
  local gone = T.past(id)
  return #gone > 0 and A.latest(gone).state or 'waiting'
end

-- What the state of a parent means for a child: 'met', 'failed' (the child is buried), or 'open' (the child waits).
-- Used by an enqueue, by the end of a parent and by a replay.
function S.dependency(state, on_dependency)
  if state == 'completed' then
    return 'met'
  end
  if state ~= 'dead' and state ~= 'cancelled' then
    return 'open'
  end
  return on_dependency == 'run' and 'met' or on_dependency == 'bury' and 'failed' or 'open'
end

-- Python makes the text of the error (decode.py).
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
  local dependency = S.dependency(state, child.on_dependency)
  if dependency == 'met' then
    T.drop_dependency(parent, seq)
    child.blocked = child.blocked - 1
    if child.blocked > 0 then
      T.update(child)
    else
      unblock(child)
    end
  elseif dependency == 'failed' then
    S.bury(child, 'dependency_failed', S.dependency_failure(parent, state), parent)
  end
end

-- The jobs that wait for this job, without those that wait for a later generation of its id.
local function dependents_of(job)
  local children = T.children(job.id)
  if #children == 0 then
    return children
  end
  local successor = T.by_id(job.id)
  if not successor or successor.seq == job.seq then
    return children
  end
  local mine = {}
  for _, seq in ipairs(children) do
    if seq < successor.seq then
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

-- Delete a finished job's record. The job's history and the state in which it ended are kept.
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
  local is_kept = job.has_dependents and job.result_until -- repeats is_kept_for_children of domain/job.py
  if keep == 0 and not is_kept and CLASS[job.state] > 0 and T.by_seq(job.seq) then
    S.remove(job, 'pruned', 'retention')
  end
end

-- Apply the consequences of all jobs that ended in this step. A loop, so that long chains do not recurse.
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
      local dependents = dependents_of(job)
      if #dependents > 0 then
        keep_result(job)
      end
      for _, child in ipairs(dependents) do
        parent_ended(child, job.id, job.state)
      end
      T.drop_if_unawaited(job.id)
      prune_at_once(job)
    end
  end
end
