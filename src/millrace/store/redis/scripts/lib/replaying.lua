-- replaying: replay a finished job, and those that were buried because it died or was cancelled.
-- Repeats replay_one, child_back and bring_children_back of domain/rules/replaying.py; lane_again of
-- domain/rules/lanes.py; set_archived of domain/rules/operate.py.
local WITH_PARENT = 'parent_replayed'

-- Whether `job` waits for an id, directly or through its parents. A later generation of a parent may.
local function waits_for(job, wanted)
  local seen, front = {}, { job }
  while #front > 0 do
    local waiting = table.remove(front)
    for _, id in ipairs(waiting.blocked > 0 and T.parents(waiting.seq) or {}) do
      if id == wanted then
        return true
      end
      local parent = T.by_id(id)
      if parent and not seen[id] then
        seen[id] = true
        front[#front + 1] = parent
      end
    end
  end
  return false
end

-- The parents that a replayed job waits for: those that have not ended; if it is replayed with a parent, also ids that
-- were never enqueued.
local function live_parents(job, unseen)
  local live = {}
  for _, id in ipairs(T.after(job)) do
    local parent = T.by_id(id)
    if not parent then
      if unseen and #T.past(id) == 0 then
        live[#live + 1] = id
      end
    elseif CLASS[parent.state] == 0 and not waits_for(parent, job.id) then
      live[#live + 1] = id
    end
  end
  return live
end

-- Take the job's key again; false if another job holds it: a key must not have two live owners.
local function take_key_back(job)
  if not job.key then
    return true
  end
  local hold = T.live_hold(job.queue, job.key)
  if hold and hold.seq ~= job.seq then
    return false
  end
  if job.scope ~= 'window' then
    T.put_hold({ queue = job.queue, key = job.key, owner = job.id, seq = job.seq, scope = job.scope })
  end
  return true
end

local function lane_again(job)
  local lanes = T.queue(job.queue).settings.lanes
  if not lanes or job.hook then
    return nil
  end
  return job.group and A.lane_of(job.group, lanes) or (job.lane or 0) % lanes
end

function U.replay(id, reason)
  local job = T.by_id(id)
  if not job then
    return 'not_found'
  end
  if CLASS[job.state] == 0 then
    return job.state
  end
  if not take_key_back(job) then
    return 'key_taken'
  end
  S.uncount_finished(job)
  job.lane = lane_again(job)
  X.replay(job, reason)
  for nth, parent in ipairs(live_parents(job, reason == WITH_PARENT)) do
    T.add_dependency(parent, job.seq, nth)
    job.blocked = job.blocked + 1
  end
  S.added(job)
  S.keep_results_for(job)
  return 'replayed'
end

-- Replay a child unless another of its parents is dead or cancelled; then it is replayed with that parent.
local function child_back(child)
  for _, id in ipairs(T.after(child)) do
    if S.dependency(S.state_of(id), child.on_dependency) == 'failed' then
      child.failed_parent = id
      T.update(child)
      return false
    end
  end
  return U.replay(child.id, WITH_PARENT) == 'replayed'
end

-- Replay the jobs that were buried because of these parents, level by level.
function U.bring_children_back(parents)
  while #parents > 0 do
    local wanted, back = {}, {}
    for _, id in ipairs(parents) do
      wanted[id] = true
    end
    for _, child in ipairs(T.dead_dependents(parents)) do
      if child.failed_parent and wanted[child.failed_parent] and child_back(child) then
        back[#back + 1] = child.id
      end
    end
    parents = back
  end
end

function U.set_archived(job, archived)
  local row, by = T.queue(job.queue), archived and 1 or -1
  row.archived = row.archived + by
  if job.state == 'dead' then
    row.archived_dead = row.archived_dead + by
  end
  T.put_queue(row)
  X.archive(job, archived)
  T.update(job)
end
