-- admission: what an enqueue of many specs does, decided before the first of them is written (domain/admission.py).
A.MOST_AHEAD = 10000

local function refuse(kind, ...)
  error({ refused = { kind, ... } })
end

-- What a refusal is to the caller; any other error is passed on.
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
    -- The product would be beyond 2^53, so it is taken in two halves.
    value = ((value % 65536) * 0x01000193 + (floor(value / 65536) * 0x01000193 % 65536) * 65536) % 2 ^ 32
  end
  return value
end

function A.lane_of(group, lanes)
  return fnv1a(group) % lanes
end

-- Is this the very enqueue that made the other job? Then it gets the same answer.
local function asked_again(spec, token)
  return spec.token ~= '' and spec.token == token
end

local function has_asked(spec, gone)
  for _, past in ipairs(gone) do
    if asked_again(spec, past.token) then
      return past
    end
  end
  return nil
end

local function latest(gone)
  local best = gone[1]
  for _, past in ipairs(gone) do
    if past.generation > best.generation then
      best = past
    end
  end
  return best
end

-- ── the plan: looks at the tables and at the earlier specs of the batch; writes nothing ─────────

local function known(plan, spec)
  local earlier = plan.new[spec.id]
  if earlier then
    return { kind = asked_again(spec, earlier.token) and 'same' or 'by_id' }
  end
  local job = T.by_id(spec.id)
  if job and asked_again(spec, job.token) then
    return { kind = 'same' }
  end
  local gone = T.past(spec.id)
  plan.unseen = not job and #gone == 0
  if plan.unseen then
    return nil
  end
  if has_asked(spec, gone) then
    return { kind = 'same' } -- whatever has become of the job, and whoever has its id now
  end
  local in_the_way = job and job.state ~= 'dead' and job.state ~= 'cancelled'
  return (in_the_way or not spec.reuse) and { kind = 'by_id' } or nil
end

local function key_owner(plan, spec)
  local in_batch = plan.keys[spec.queue .. ':' .. spec.key]
  if in_batch then
    return in_batch
  end
  local hold = T.hold(spec.queue, spec.key)
  if not hold or (hold.ends and hold.ends <= now) then
    return nil
  end
  return hold.owner
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

-- A full lane is passed over by jobs that may go to any, so that one which stands still stops only its own.
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
  local depth = waiting_in(row, lane) + taken - swap
  if depth >= settings.max_depth then
    refuse('queue_full', spec.queue, depth, settings.max_depth, lane or false)
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

-- Depth first over open dependencies. A stored job leads back to a new one only if it already waits for it.
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

local function plan_for(specs, carried)
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

-- Jobs that a settle carries may wait for each other for ever, too.
function A.refuse_cycles(specs)
  for _, spec in ipairs(specs) do
    if spec.after then
      refuse_cycles(plan_for(specs, true))
      return
    end
  end
end

-- ── writing ─────────────────────────────────────────────────────────────────────────────────────

local function replace_owner(queue, key)
  local hold = T.hold(queue, key)
  local owner = hold and T.by_seq(hold.seq)
  if hold then
    T.drop_hold(hold)
  end
  if owner and owner.state == 'waiting' then
    X.cancel(owner, 'replaced')
    S.finished(owner, 'waiting')
  end
end

-- The generation of the new job; an ended record under the same id makes way for it.
local function make_way(spec)
  local ended = T.by_id(spec.id)
  if ended then
    S.remove(ended, 'pruned', 'replaced')
    return ended.generation + 1
  end
  local gone = T.past(spec.id)
  return 1 + (#gone > 0 and latest(gone).generation or 0)
end

local function state_of(id)
  local job = T.by_id(id)
  if job then
    return job.state
  end
  local gone = T.past(id)
  return #gone > 0 and latest(gone).state or 'waiting'
end

-- Parents still to wait for, and the first one that failed under the policy `bury`.
local function sort_parents(spec, fresh)
  local open, seen, failed = {}, {}, nil
  for _, parent in ipairs(spec.after) do
    if not seen[parent] then
      seen[parent] = true
      local state = fresh[parent] and 'waiting' or state_of(parent)
      local lost = state == 'dead' or state == 'cancelled'
      if lost and spec.on_dependency == 'bury' then
        failed = failed or { parent, state }
      elseif not (state == 'completed' or (lost and spec.on_dependency == 'run')) then
        open[#open + 1] = parent
      end
    end
  end
  return failed and {} or open, failed
end

local function queued(job, row, ahead_in_lane)
  local lane, position, depth = false, false, false
  if job.lane then
    local line = T.line(job.queue, T.line_name(job))
    lane, depth = job.lane, line and line.waiting or 0
    position = job.priority == 0 and ahead_in_lane or A.ahead(job, A.MOST_AHEAD)
  elseif row.settings.max_depth then
    depth = row.waiting
  end
  return { 'queued', job.id, job.seq, job.generation, job.state, false, false, false, false, lane, position, depth }
end

local function write(spec, verdict, fresh, carried)
  if verdict.replaces and spec.key then
    replace_owner(spec.queue, spec.key)
  end
  local generation = verdict.unseen and 1 or make_way(spec)
  local seq = T.next_seq()
  local open, failed = {}, nil
  if spec.after then
    open, failed = sort_parents(spec, fresh)
  end
  local row = T.queue(spec.queue)
  if verdict.lane and not spec.group then
    row.next_lane = (verdict.lane + 1) % (row.settings.lanes or 1)
  end
  local job = T.insert(spec, seq, generation)
  job.blocked, job.lane = #open, verdict.lane
  T.log(job, 'enqueued', nil, nil, nil, spec.delay > 0 and spec.delay or nil)
  for nth, parent in ipairs(open) do
    T.add_dependency(parent, seq, nth)
  end
  if spec.key then
    T.put_hold({ queue = spec.queue, key = spec.key, owner = spec.id, seq = seq, scope = spec.scope,
      ends = spec.scope == 'window' and now + spec.window or nil })
  end
  local line = job.lane and T.line(spec.queue, T.line_name(job))
  local position = line and line.live or 0
  S.added(job)
  if failed then
    S.bury(job, 'dependency_failed', S.dependency_failure(failed[1], failed[2]))
  end
  if not carried then
    S.carry_out()
  end
  return queued(job, row, position)
end

local function from_past(spec, owner, verdict, by)
  local gone = T.past(owner)
  if verdict.kind == 'same' then
    local past = has_asked(spec, gone)
    return { 'queued', owner, past.seq, past.generation, past.state, false, false, false, false, false, false, false }
  end
  if #gone == 0 then -- a window outlives even the memory of its owner
    return { 'duplicate', owner, 0, 0, 'completed', by, false, false, false, false, false, false }
  end
  local past = latest(gone)
  return { 'duplicate', owner, past.seq, past.generation, past.state, by, false, false, false, false, false, false }
end

-- The spec of the job that is there goes along: whoever asked compares the payloads.
local function duplicate(spec, verdict)
  local by = verdict.kind == 'by_key' and 'key' or 'id'
  if by == 'key' and spec.on_hit == 'extend' then
    local hold = T.hold(spec.queue, spec.key)
    if hold and hold.ends then
      hold.ends = now + spec.window
      T.put_hold(hold)
    end
  end
  local owner = by == 'key' and verdict.owner or spec.id
  local job = T.by_id(owner)
  if not job or (verdict.kind == 'same' and job.token ~= spec.token) then
    return from_past(spec, owner, verdict, by)
  end
  if verdict.kind == 'same' then
    return { 'queued', job.id, job.seq, job.generation, job.state, false, false, false, false, job.lane or false,
      false, false }
  end
  local completed = job.state == 'completed' and by == 'id'
  local kept = completed and (not job.result_until or job.result_until > now) and not job.result_expired
  return { kept and 'completed' or 'duplicate', job.id, job.seq, job.generation, job.state, by,
    kept and job.result and T.hget(KEY.result, job.seq) or false, completed and not kept,
    by == 'id' and T.hget(KEY.spec, job.seq) or false, false, false, false }
end

-- `carried` jobs come with a settle, which must not fail for their sake: nothing refuses those, and what their arrival
-- brings to an end is carried out by the step they come with.
function A.enqueue(specs, carried)
  local plan, answers, fresh = plan_for(specs, carried), {}, {}
  for id in pairs(plan.new) do
    fresh[id] = true
  end
  for i, spec in ipairs(specs) do
    local verdict = plan.verdicts[i]
    if verdict.kind == 'new' then
      answers[i] = write(spec, verdict, fresh, carried)
      fresh[spec.id] = nil
    else
      answers[i] = duplicate(spec, verdict)
    end
  end
  return answers
end

-- Specs as they come over the wire; the body's number says which of the arguments it is.
function A.spec(item)
  local spec = {}
  spec.id, spec.token, spec.queue, spec.task, spec.priority, spec.lease, spec.keep_result, spec.expires, spec.group,
    spec.retry_blocks, spec.key, spec.scope, spec.on_dependency, spec.on_dead_letter, spec.hook, spec.delay,
    spec.window, spec.on_hit, spec.reuse, spec.allow_missing, spec.after, spec.body = unpack(item, 1, 22)
  spec.body = ARGV[spec.body]
  return spec
end

function A.specs(items)
  local specs = {}
  for i, item in ipairs(items) do
    specs[i] = A.spec(item)
  end
  return specs
end
