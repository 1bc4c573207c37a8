-- sleep: returns the milliseconds until a claim may find a job: 0 if it may now, -1 if the time is unknown. Unless 0 is
-- returned, the sleeper is registered in the same step, so that it misses no hint. A wait for cancels returns 0 if a
-- cancel was recorded for the worker while it did not wait.
-- Takes {queues, tasks or nil, name of the set of tasks, listener, sleeper, milliseconds to keep the registration}.
-- Repeats outlook of domain/rules/outlook.py.
local queues, tasks, kind, listener, sleeper, length = unpack(args, 1, 6)
local known = tasks and set_of(tasks)

if queues[1] == CANCELS and call('DEL', P .. 'cancelled:' .. tasks[1]) == 1 then
  return 0
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

local rooms, is_room = {}, {}
local function room(name)
  if not is_room[name] then
    rooms[#rooms + 1], is_room[name] = name, true
  end
end

for _, name in ipairs(queues) do
  local row = T.queue(name)
  local settings, token = row.settings, L.next_token(row.settings, row)
  local closed = settings.paused or (settings.max_running and row.running >= settings.max_running)
  local due = head_of(P .. 'o:' .. name)
  for _, combo in ipairs(T.combos_of(name)) do
    if not known or known[combo.task] then
      local at = head_of(combo.key)
      if closed or not full[combo.task] then
        due = at and min(due or at, at) or due
      elseif at and at <= now then
        room('t:' .. combo.task)
      else
        maybe(at)
      end
    end
  end
  if due and due <= now and (closed or token > now) then
    room('q:' .. name)
  end
  if due and not (closed and due <= now) then
    maybe(closed and due or max(due, token))
  end
end

if instant and instant <= now then
  return 0
end
local expires = server_time + length
call('HSET', KEY.asleep, sleeper, pack(listener, kind, queues, rooms, expires))
for _, name in ipairs(queues) do
  call('HSET', P .. 'idle:' .. name, kind, pack(known or true))
  call('ZADD', P .. 'idle:' .. name .. ':' .. kind, expires, sleeper)
end
for _, name in ipairs(rooms) do
  call('ZADD', P .. 'room:' .. name, expires, sleeper)
end
return instant and instant - now or -1
