-- write: commands with many values, appending events to the feed, hints to sleepers and watchers.
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

-- Remove a sleeper from all its sets. Returns its listener, or nil if it is not registered. A sleeper is in a set for
-- each of its queues and its kind (the name of its set of tasks), and in one for each limit that keeps a due job from it.
-- A kind without sleepers is removed, so that a busy queue costs one read.
local function remove_sleeper(name)
  local record = call('HGET', P .. 'asleep', name)
  if not record then
    return nil
  end
  local listener, kind, queues, rooms = unpacked(record)
  call('HDEL', P .. 'asleep', name)
  for _, queue in ipairs(queues) do
    local key = P .. 'idle:' .. queue .. ':' .. kind
    call('ZREM', key, name)
    if call('EXISTS', key) == 0 then
      call('HDEL', P .. 'idle:' .. queue, kind)
    end
  end
  for _, room in ipairs(rooms) do
    call('ZREM', P .. 'room:' .. room, name)
  end
  return listener
end

-- Wake up to so many sleepers of a set; return how many. Those with the longest time left come first, because the others
-- wake up soon by themselves. A sleeper whose process was killed has no connection, so PUBLISH reaches no receiver.
local function wake_sleepers(key, jobs)
  local woken = 0
  while woken < jobs do
    local names = call('ZREVRANGEBYSCORE', key, '+inf', server_time, 'LIMIT', 0, jobs - woken)
    if #names == 0 then
      break
    end
    for _, name in ipairs(names) do
      local listener = remove_sleeper(name)
      call('ZREM', key, name)
      if listener and call('PUBLISH', P .. 'hear:' .. listener, 'w' .. name) > 0 then
        woken = woken + 1
      end
    end
  end
  return woken
end

-- Send a hint to sleepers that can use it. Places are those of domain/rules/outlook.py; without a task or a queue, there
-- is room under the limit of that queue or task.
local function wake(queue, task, jobs)
  jobs = min(jobs, 100)
  if not task or not queue then
    wake_sleepers(P .. 'room:' .. (queue and 'q:' .. queue or 't:' .. task), jobs)
    return
  end
  local kinds = call('HGETALL', P .. 'idle:' .. queue)
  for i = 1, #kinds, 2 do
    local known = jobs > 0 and unpacked(kinds[i + 1])
    if known and (known == true or known[task]) then
      jobs = jobs - wake_sleepers(P .. 'idle:' .. queue .. ':' .. kinds[i], jobs)
    end
  end
  if queue == CANCELS and jobs > 0 then -- the worker is between two waits: its next one returns at once
    call('SET', P .. 'cancelled:' .. task, 1, 'PX', CANCEL_KEPT)
  end
end

local function register_watch(id, listener, length, wanted)
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

-- Notify the watchers of these jobs of their end: by id, or with the job itself if `news_of` returns it for the index of
-- the id. A watcher that gets the job itself is removed.
local function notify_ended(ids, news_of)
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
