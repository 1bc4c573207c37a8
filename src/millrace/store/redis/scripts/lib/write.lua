-- write: many values to one command, events to the end of the feed, and hints to who sleeps.
local function each_part(values, command, key, width)
  local step = MOST - MOST % (width or 1)
  for first = 1, #values, step do
    call(command, key, unpack(values, first, min(#values, first + step - 1)))
  end
end

local function push_events(events, number)
  local first = 1
  while first <= #events do
    local here = min(#events - first + 1, BLOCK - (number - 1) % BLOCK, MOST)
    call('RPUSH', P .. 'feed:' .. floor((number - 1) / BLOCK), unpack(events, first, first + here - 1))
    first, number = first + here, number + here
  end
end

-- Those first who sleep the longest from now: whoever's time is nearly over looks by itself, or was killed and is still
-- written down.
local function wake(queue, jobs)
  local key = P .. 'idle:' .. queue
  for _, name in ipairs(call('ZREVRANGEBYSCORE', key, '+inf', server_time, 'LIMIT', 0, min(jobs, 100))) do
    local sleeper = call('HGET', P .. 'asleep', name)
    call('ZREM', key, name)
    if sleeper then
      local listener, queues = unpacked(sleeper)
      call('HDEL', P .. 'asleep', name)
      for _, other in ipairs(queues) do
        call('ZREM', P .. 'idle:' .. other, name)
      end
      call('PUBLISH', P .. 'hear:' .. listener, 'w' .. name)
    end
  end
end

local function tell_of_ends(ids)
  if #ids == 0 or call('EXISTS', P .. 'watch') == 0 then
    return
  end
  for first = 1, #ids, MOST do
    local last = min(#ids, first + MOST - 1)
    local watched = call('HMGET', P .. 'watch', unpack(ids, first, last))
    for i = first, last do
      for listener in (watched[i - first + 1] or ''):gmatch('%S+') do
        call('PUBLISH', P .. 'hear:' .. listener, 'e' .. ids[i])
      end
    end
  end
end
