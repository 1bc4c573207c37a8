-- due_schedules: what a scheduler looks at. Takes {names, limit, skip}.
-- Returns {now, the schedules with these names or false, the first `limit` due schedules after the first `skip`, when to look again or false}.
-- Repeats due_schedules of domain/rules/scheduling.py.
local names, limit, skip = args[1], args[2], args[3]

local function kept(found)
  for i, name in ipairs(found) do
    found[i] = call('HGET', KEY.schedule, name)
  end
  return found
end

local answer = { now, kept(names), {}, false }
if limit > 0 then
  local due = call('ZRANGEBYSCORE', KEY.ticks, '-inf', now, 'LIMIT', skip, limit)
  local next = call('ZRANGEBYSCORE', KEY.ticks, '(' .. format('%.0f', now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  answer[3], answer[4] = kept(due), #due == limit and now or next[2] or false
end
return answer
