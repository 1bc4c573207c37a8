-- write: many values to one command, events to the end of the feed, and hints to who sleeps.
local function each_part(values, command, key, width)
  local step = MOST - MOST % (width or 1)
  for first = 1, #values, step do
    call(command, key, unpack(values, first, min(#values, first + step - 1)))
  end
end

-- The field of a job in the hashes: its seq without the zeros that its name in the indexes begins with.
local field_starts, field_from, field_below = 16, 0, 10
local function field_of(name, seq)
  if seq < field_from or seq >= field_below then
    field_starts, field_from, field_below = 16, 0, 10
    while seq >= field_below do
      field_starts, field_from, field_below = field_starts - 1, field_below, field_below * 10
    end
  end
  return sub(name, field_starts)
end

-- A count as msgpack has it, in most cases one byte. `pack` makes a text of each of its arguments and then one of them
-- all: what is the same in many records is packed once and put between what differs.
local function small(count)
  return count < 128 and char(count) or pack(count)
end

-- The name and the field of a job.
local function texts_of(seq)
  local name = format('%016.0f', seq)
  return name, field_of(name, seq)
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
  if call('EXISTS', key) == 0 then -- the usual with work to do, and less than a look for the right ones
    return
  end
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

local function be_told(id, listener, length, wanted)
  local listeners = {}
  for name in (call('HGET', P .. 'watch', id) or ''):gmatch('%S+') do
    if name ~= listener then
      listeners[#listeners + 1] = name
    end
  end
  if wanted then
    listeners[#listeners + 1] = listener
  end
  if #listeners > 0 then
    call('HSET', P .. 'watch', id, table.concat(listeners, ' '))
    call('ZADD', P .. 'watching', server_time + length, id)
  else
    call('HDEL', P .. 'watch', id)
    call('ZREM', P .. 'watching', id)
  end
end

-- Whoever watches one of these hears of its end: by its id alone, or with the job itself, where `news_of` gives it by
-- its place among the ids. Who has been given the job has nothing more to wait for.
local function tell_of_ends(ids, news_of)
  if #ids == 0 or call('EXISTS', P .. 'watch') == 0 then
    return
  end
  for first = 1, #ids, MOST do
    local last = min(#ids, first + MOST - 1)
    local watched = call('HMGET', P .. 'watch', unpack(ids, first, last))
    for i = first, last do
      local listeners = watched[i - first + 1]
      if listeners then
        local news = news_of and news_of(i)
        for listener in listeners:gmatch('%S+') do
          call('PUBLISH', P .. 'hear:' .. listener, news or 'e' .. ids[i])
        end
        if news then
          call('HDEL', P .. 'watch', ids[i])
          call('ZREM', P .. 'watching', ids[i])
        end
      end
    end
  end
end
