-- plan: decides what an enqueue of many specs does, before any of them is written.
-- Repeats _Plan of domain/rules/admission.py.
A.MOST_AHEAD = 10000

local function refuse(kind, ...)
  error({ refused = { kind, ... } })
end

-- Return a refusal to the caller; raise any other error again.
function A.attempt(work, ...)
  local fine, answer = pcall(work, ...)
  if fine then
    return answer, nil
  end
  if type(answer) == 'table' and answer.refused then
    return nil, answer.refused
  end
  error(answer, 0)
end

local function fnv1a(text)
  local value = 0x811C9DC5
  for i = 1, #text do
    value = bit.bxor(value, byte(text, i)) % 2 ^ 32
    -- The product would exceed 2^53, so it is computed in two halves.
    value = ((value % 65536) * 0x01000193 + (floor(value / 65536) * 0x01000193 % 65536) * 65536) % 2 ^ 32
  end
  return value
end

function A.lane_of(group, lanes)
  return fnv1a(group) % lanes
end

-- Whether this repeats the enqueue call that made the other job. Then it gets the same answer.
local function is_repeat(spec, token)
  return spec.token ~= '' and spec.token == token
end

function A.repeated_past(spec, gone)
  for _, past in ipairs(gone) do
    if is_repeat(spec, past.token) then
      return past
    end
  end
  return nil
end

-- Whether the result of a completed job can still be read, as has_result of domain/job.py.
function A.has_result(job)
  return not job.result_expired and (not job.result_until or job.result_until > now or job.has_dependents)
end

function A.latest(gone)
  local best = gone[1]
  for _, past in ipairs(gone) do
    if past.generation > best.generation then
      best = past
    end
  end
  return best
end

-- ── the plan: reads the tables and the earlier specs of the call; writes nothing ────────────────

-- Whether a new job may take the id of this record.
local function makes_way(job, spec)
  if job.state == 'completed' then
    return spec.rerun_expired and not A.has_result(job)
  end
  return job.state == 'dead' or job.state == 'cancelled'
end

local function known(plan, spec)
  local earlier = plan.new[spec.id]
  if earlier then
    return { kind = is_repeat(spec, earlier.token) and 'same' or 'by_id' }
  end
  local job = T.by_id(spec.id)
  if job and is_repeat(spec, job.token) then
    return { kind = 'same' }
  end
  local gone = T.past(spec.id)
  plan.unseen = not job and #gone == 0
  if plan.unseen then
    return nil
  end
  if A.repeated_past(spec, gone) then
    return { kind = 'same' } -- however that job ended, and even if another job has its id now
  end
  local in_the_way = job and not makes_way(job, spec)
  return (in_the_way or not spec.reuse) and { kind = 'by_id' } or nil
end

local function key_owner(plan, spec)
  local in_batch = plan.keys[spec.queue .. ':' .. spec.key]
  if in_batch then
    return in_batch
  end
  local hold = T.live_hold(spec.queue, spec.key)
  return hold and hold.owner
end

local function may_replace(plan, spec, owner)
  if spec.on_hit ~= 'replace' then
    return false
  end
  local job = T.by_id(owner)
  return plan.new[owner] ~= nil or (job ~= nil and job.state == 'waiting')
end

local function waiting_in(row, lane)
  if not lane then
    return row.waiting
  end
  local line = T.line(row.name, 'l:' .. lane)
  return line and line.waiting or 0
end

-- Whether a lane is at max_depth. Jobs without a partition key skip it, so a stuck lane blocks no other.
local function is_full(plan, row, lane)
  local most = row.settings.max_depth
  return most ~= nil and waiting_in(row, lane) + (plan.depth[row.name .. ':' .. lane] or 0) >= most
end

local function choose_lane(plan, spec, row)
  local lanes = row.settings.lanes
  if not lanes or spec.hook then
    return nil
  end
  if spec.group then
    return A.lane_of(spec.group, lanes)
  end
  local first = (plan.lanes[spec.queue] or row.next_lane) % lanes
  local chosen = first
  for turn = first, first + lanes - 1 do
    if not is_full(plan, row, turn % lanes) then
      chosen = turn % lanes
      break
    end
  end
  plan.lanes[spec.queue] = chosen + 1
  return chosen
end

local function take_room(plan, spec, row, lane, replaces)
  local settings = row.settings
  if plan.carried or spec.hook then
    return
  end
  if settings.dead_overflow == 'reject' and settings.dead_cap then
    local dead = row.dead - row.archived_dead
    if dead >= settings.dead_cap then
      refuse('dead_letters_full', spec.queue, dead, settings.dead_cap)
    end
  end
  if not settings.max_depth then
    return
  end
  local place, swap = spec.queue .. ':' .. (lane or ''), replaces and 1 or 0
  local taken = plan.depth[place] or 0
  local waiting = waiting_in(row, lane)
  if waiting + taken - swap >= settings.max_depth then
    refuse('queue_full', spec.queue, waiting, settings.max_depth, lane or false)
  end
  plan.depth[place] = taken + 1 - swap
end

local function verdict_on(plan, spec)
  local answer = known(plan, spec)
  if answer then
    return answer
  end
  local unseen, replaces = plan.unseen, false
  if spec.key then
    local owner = key_owner(plan, spec)
    if owner then
      if not may_replace(plan, spec, owner) then
        if spec.on_hit == 'raise' and not plan.carried then
          refuse('duplicate_key', spec.queue, spec.key, owner)
        end
        return { kind = 'by_key', owner = owner }
      end
      replaces = true
    end
    plan.keys[spec.queue .. ':' .. spec.key] = spec.id
  end
  local row = T.queue(spec.queue)
  local lane = choose_lane(plan, spec, row)
  take_room(plan, spec, row, lane, replaces)
  plan.new[spec.id] = spec
  plan.order[#plan.order + 1] = spec.id
  return { kind = 'new', lane = lane, replaces = replaces, unseen = unseen }
end

local function refuse_unknown_parents(plan)
  for _, id in ipairs(plan.order) do
    local spec = plan.new[id]
    for _, parent in ipairs(not spec.allow_missing and spec.after or {}) do
      if not (plan.new[parent] or T.by_id(parent) or #T.past(parent) > 0) then
        refuse('unknown_dependency', id, parent)
      end
    end
  end
end

local function copy_of(list)
  local copy = {}
  for i = 1, #list do
    copy[i] = list[i]
  end
  return copy
end

local function open_parents(plan, id, look_at_stored)
  local spec = plan.new[id]
  if spec then
    return copy_of(spec.after or {})
  end
  local job = look_at_stored and T.by_id(id)
  return job and job.blocked > 0 and T.parents(job.seq) or {}
end

-- Depth-first search for a cycle. Stored jobs are part of one only if one of them already waits for a new id.
local function refuse_cycles(plan)
  local awaited, done = false, {}
  for _, id in ipairs(plan.order) do
    awaited = awaited or (plan.new[id].after and #T.children(id) > 0)
  end
  for _, start in ipairs(plan.order) do
    if plan.new[start].after and not done[start] then
      local path, left, depth = { start }, { copy_of(plan.new[start].after) }, { [start] = 1 }
      while #path > 0 do
        local node, todo = path[#path], left[#path]
        if #todo == 0 then
          done[node], depth[node] = true, nil
          path[#path], left[#left] = nil, nil
        else
          local parent = table.remove(todo)
          if depth[parent] then
            local circle = { 'cycle' }
            for i = depth[parent], #path do
              circle[#circle + 1] = path[i]
            end
            circle[#circle + 1] = parent
            error({ refused = circle })
          end
          if not done[parent] then
            path[#path + 1], left[#left + 1] = parent, open_parents(plan, parent, awaited)
            depth[parent] = #path
          end
        end
      end
    end
  end
end

function A.plan_for(specs, carried)
  local plan = { carried = carried, new = {}, order = {}, keys = {}, depth = {}, lanes = {}, verdicts = {} }
  local ids, parents = {}, false
  for _, spec in ipairs(specs) do
    ids[#ids + 1] = spec.id
    for _, parent in ipairs(spec.after or {}) do
      parents = true
      ids[#ids + 1] = parent
    end
  end
  T.prefetch_ids(ids)
  for i, spec in ipairs(specs) do
    plan.verdicts[i] = verdict_on(plan, spec)
  end
  if parents and not carried then
    refuse_unknown_parents(plan)
    refuse_cycles(plan)
  end
  return plan
end

-- Refuse jobs of a settle that depend on each other in a cycle.
function A.refuse_cycles(specs)
  for _, spec in ipairs(specs) do
    if spec.after then
      refuse_cycles(A.plan_for(specs, true))
      return
    end
  end
end
