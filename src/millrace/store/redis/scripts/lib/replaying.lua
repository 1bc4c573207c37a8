-- replaying: bring a finished job back, as in domain/operate.py.

-- Does `job` wait, directly or not, for an id? A later generation of a parent may.
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

-- It waits again for parents that are still to end, not for those that have ended.
local function live_parents(job)
  local live, seen = {}, {}
  local kept = job.waits and T.hget(KEY.after, job.seq)
  for _, id in ipairs(kept and unpacked(kept) or {}) do
    local parent = not seen[id] and T.by_id(id)
    seen[id] = true
    if parent and (parent.state == 'waiting' or parent.state == 'running') and not waits_for(parent, job.id) then
      live[#live + 1] = id
    end
  end
  return live
end

-- The job's end let go of its key; bringing it back must not make two live owners.
local function take_key_back(job)
  if not job.key then
    return true
  end
  local hold = T.hold(job.queue, job.key)
  if hold and hold.seq ~= job.seq and (not hold.ends or hold.ends > now) then
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
  for nth, parent in ipairs(live_parents(job)) do
    T.add_dependency(parent, job.seq, nth)
    job.blocked = job.blocked + 1
  end
  S.added(job)
  return 'replayed'
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
