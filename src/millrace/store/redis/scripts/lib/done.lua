-- done: write what the step has changed, wake who waits for it, and keep the answer for whoever asks again.
local REMEMBERED = 600 -- seconds: longer than anybody repeats a call

local function wake(queue, jobs, instant)
  local key = P .. 'idle:' .. queue
  for _, name in ipairs(call('ZRANGEBYSCORE', key, instant, '+inf', 'LIMIT', 0, min(jobs, 100))) do
    local sleeper = call('HGET', KEY.asleep, name)
    call('ZREM', key, name)
    if sleeper then
      local listener, queues = unpacked(sleeper)
      call('HDEL', KEY.asleep, name)
      for _, other in ipairs(queues) do
        call('ZREM', P .. 'idle:' .. other, name)
      end
      call('PUBLISH', P .. 'hear:' .. listener, 'w' .. name)
    end
  end
end

local function tell_of_ends()
  local ids = {}
  for id in pairs(T.ended) do
    ids[#ids + 1] = id
  end
  if #ids == 0 or call('EXISTS', KEY.watch) == 0 then
    return
  end
  for first = 1, #ids, MOST do
    local last = min(#ids, first + MOST - 1)
    local watched = call('HMGET', KEY.watch, unpack(ids, first, last))
    for i = first, last do
      local listeners = watched[i - first + 1]
      if listeners then
        for listener in listeners:gmatch('%S+') do
          call('PUBLISH', P .. 'hear:' .. listener, 'e' .. ids[i])
        end
      end
    end
  end
end

function T.flush()
  if next(T.dirty) ~= nil then
    T.index()
  end
  if #T.feed > 0 then
    T.write_events()
  end
  T.write_queues()
  if next(T.changed_lines) ~= nil or next(T.changed_tasks) ~= nil then
    T.write_lines()
    T.write_tasks()
  end
  if next(T.combos) ~= nil then
    T.write_combos()
  end
  for key, changes in pairs(T.zsets) do
    write_zset(key, changes)
  end
  for key, changes in pairs(T.hashes) do
    write_hash(key, changes)
  end
  if T.at_hand then
    call('HSET', KEY.store, 'seq', T.at_hand.seq, 'events', T.at_hand.events, 'trimmed', T.at_hand.trimmed)
  end
  T.zsets, T.hashes = {}, {}
end

function T.done(answer, memo)
  T.flush()
  if next(T.stirred) ~= nil then
    local instant = ARGV[3] ~= '' and server_time() or now
    for queue, jobs in pairs(T.stirred) do
      wake(queue, jobs, instant)
    end
  end
  tell_of_ends()
  if ARGV[2] ~= '' then
    call('SET', MEMO, pack(tonumber(ARGV[2]), memo or answer), 'EX', REMEMBERED)
  end
  return answer
end
