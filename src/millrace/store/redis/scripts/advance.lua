-- advance: write each schedule whose revision has not changed, and enqueue its jobs in the same step.
-- Takes {moves}: {name, seen, mark or nil, due_at or nil, index of the schedule's body, specs}.
-- Returns {status, rev, mark, schedule, refusal} for each.
-- Repeats advance of domain/rules/scheduling.py.
if repeated then
  return repeated
end

local function advance_one(move)
  local name, seen, wanted_mark, due_at, body, items = unpack(move, 1, 6)
  local kept, rev, mark, schedule = T.hget(KEY.schedule, name), 0, nil, false
  if kept then
    rev, mark = unpacked(sub(kept, 1, 18))
    schedule = sub(kept, 19)
  end
  local current = { rev, mark or false, schedule }
  if seen ~= rev then
    return { 'stale', current }
  end
  if not wanted_mark then
    T.hput(KEY.schedule, name, false)
    T.zput(KEY.ticks, name, false)
    return { 'ok', { 0, false, false } }
  end
  local new_mark = kept and max(wanted_mark, mark) or now
  if kept and new_mark > now and new_mark > mark then
    return { 'early', current }
  end
  if items and #items > 0 then
    local _, refused = A.attempt(A.enqueue, A.specs(items), false)
    if refused then -- for example a full queue: a later move tries this tick again
      return { 'refused', current, refused }
    end
  end
  -- Revisions start at the current time, so that a schedule that is removed and created again has new ones.
  local new_rev = kept and rev + 1 or max(now, 1)
  T.hput(KEY.schedule, name, wide(new_rev) .. wide(new_mark) .. ARGV[body])
  T.zput(KEY.ticks, name, due_at or false)
  return { 'ok', { new_rev, new_mark, ARGV[body] } }
end

local answers = {}
for i, move in ipairs(args[1]) do
  answers[i] = advance_one(move)
end
return T.done(answers)
