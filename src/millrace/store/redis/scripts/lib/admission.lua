-- admission: apply the plan of an enqueue: write new jobs, and answer duplicates from the existing records.
-- Repeats enqueue of domain/rules/admission.py.

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

-- Return the generation of the new job, and remove a finished record with the same id.
local function make_way(spec)
  local ended = T.by_id(spec.id)
  if ended then
    S.remove(ended, 'pruned', 'replaced')
    return ended.generation + 1
  end
  local gone = T.past(spec.id)
  return 1 + (#gone > 0 and A.latest(gone).generation or 0)
end

-- Return the parents to wait for, and the first failed one if on_dependency is 'bury'.
local function sort_parents(spec, fresh)
  local open, seen, failed = {}, {}, nil
  for _, parent in ipairs(spec.after) do
    if not seen[parent] then
      seen[parent] = true
      local state = fresh[parent] and 'waiting' or S.state_of(parent)
      local dependency = S.dependency(state, spec.on_dependency)
      if dependency == 'failed' then
        failed = failed or { parent, state }
      elseif dependency == 'open' then
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
    S.bury(job, 'dependency_failed', S.dependency_failure(failed[1], failed[2]), failed[1])
  elseif spec.after then
    S.keep_results_for(job)
  end
  if not carried then
    S.carry_out()
  end
  return queued(job, row, position)
end

local function from_past(spec, owner, verdict, by)
  local gone = T.past(owner)
  if verdict.kind == 'same' then
    local past = A.repeated_past(spec, gone)
    return { 'queued', owner, past.seq, past.generation, past.state, false, false, false, false, false, false, false }
  end
  if #gone == 0 then -- a window can last longer than the past of its owner is kept
    return { 'duplicate', owner, 0, 0, 'completed', by, false, false, false, false, false, false }
  end
  local past = A.latest(gone)
  return { 'duplicate', owner, past.seq, past.generation, past.state, by, false, false, false, false, false, false }
end

-- The spec of the existing job is returned too, so that the caller can compare the payloads.
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
  local kept = completed and A.has_result(job)
  return { kept and 'completed' or 'duplicate', job.id, job.seq, job.generation, job.state, by,
    kept and job.result and T.hget(KEY.result, job.seq) or false, completed and not kept,
    T.hget(KEY.spec, job.seq) or false, job.lane or false, false, false }
end

-- `carried` jobs are enqueued by a settle and are never refused, because the settle must not fail. The caller's step
-- applies their consequences.
function A.enqueue(specs, carried)
  local plan, answers, fresh = A.plan_for(specs, carried), {}, {}
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

-- Read specs as Python sends them (encode.SPEC_FIELDS), each with the index of its body in ARGV.
function A.spec(item)
  local spec = spec_from(item)
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
