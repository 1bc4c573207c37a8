-- sleep: when a claim may find something; whoever has to wait for it is written down in the same step, so that nothing
-- that happens from now on is slept over. Asks {queues, tasks or nil, listener, sleeper, milliseconds}.
-- Answers milliseconds until then, or -1 when nobody can know.
local queues, tasks, listener, sleeper, length = unpack(asked, 1, 5)
local known = nil
if tasks then
  known = {}
  for _, task in ipairs(tasks) do
    known[task] = true
  end
end

local full, instant = {}, nil
local function maybe(at)
  instant = at and min(instant or at, at) or instant
end

local limited = call('HGETALL', KEY.task)
for i = 1, #limited, 2 do
  local row = T.task(limited[i])
  if (not known or known[row.name]) and L.allowance(row.limits, row) <= 0 then
    full[row.name] = true
    if not row.limits.max_running or row.running < row.limits.max_running then
      maybe(L.next_token(row.limits, row))
    end
  end
end

local function head_of(key)
  local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return head[2] and tonumber(head[2])
end

for _, name in ipairs(queues) do
  local row = T.queue(name)
  local settings = row.settings
  if not settings.paused and not (settings.max_running and row.running >= settings.max_running) then
    local due = head_of(P .. 'o:' .. name)
    for _, combo in ipairs(T.combos_of(name)) do
      if (not known or known[combo.task]) and not full[combo.task] then
        local at = head_of(combo.key)
        due = at and min(due or at, at) or due
      end
    end
    maybe(due and max(due, L.next_token(settings, row)))
  end
end

if instant and instant <= now then
  return 0
end
local expires = server_time + length
call('HSET', KEY.asleep, sleeper, pack(listener, queues))
for _, name in ipairs(queues) do
  call('ZADD', P .. 'idle:' .. name, expires, sleeper)
end
return instant and instant - now or -1
