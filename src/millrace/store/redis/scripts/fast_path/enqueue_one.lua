-- fast_path/enqueue_one: as fast_path/enqueue, for one simple spec with a token. Most of the cost of a script with so few
-- commands is the creation of functions and tables, so it has none of its own: it repeats lib/open.lua and, in place,
-- texts_of, new_record, waiting_facts, enqueued_event and add_to_queue of lib/fast_path.lua.
-- Repeats enqueue_simple of domain/rules/fast_path.py.
-- Takes {queue, task, priority, expires, delay, id, token, listener or nil, milliseconds}; the last two register a watch.
-- ARGV 5 is the body, 6 the constant part of the record without id and token. Returns the seq, or -1 if the fast path does
-- not apply.
local P, call, pack, unpacked, format, floor = KEYS[1], redis.call, cmsgpack.pack, cmsgpack.unpack, string.format, math.floor
local queue, task, priority, expires, delay, id, token, listener, watched = unpack(unpacked(ARGV[4]), 1, 9)
-- include lib/accepts
if not accepts or call('EXISTS', P .. 'past') == 1 and call('HEXISTS', P .. 'past', id) == 1 then
  return -1
end
local counters = call('HMGET', P .. 'store', 'seq', 'events')
local seq, number = (counters[1] or 0) + 1, (counters[2] or 0) + 1
local name, field = format('%016.0f', seq), format('%.0f', seq)
if call('HSETNX', P .. 'id', id, field) == 0 then
  return -1
end

local time = call('TIME')
local server_time = time[1] * 1000 + floor(time[2] / 1000)
local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or server_time
local combo, packed, instant, packed_token = task .. ':' .. priority, pack(id), pack(now), '\195'
if token ~= id then
  packed_token = pack(token)
end
local part = #packed + #packed_token + #ARGV[6]
call('HSET', P .. 'job', field, string.char(floor(part / 256), part % 256) .. packed .. packed_token .. ARGV[6]
  .. '\1\167waiting' .. instant .. (delay > 0 and pack(now + delay) or instant)
  .. '\1\195\0\192\192\192\192\192\192\194' .. (expires and pack({ expires_at = now + expires }) or '\192') .. pack(number))
call('HSET', P .. 'spec', field, ARGV[5])
call('ZADD', P .. 'r:' .. queue .. ':' .. combo, format('%.0f', now + delay), name)
call('ZADD', P .. 'q:' .. queue, field, name)
if expires then
  call('ZADD', P .. 'expire', format('%.0f', now + expires), name)
end
call('SADD', P .. 'combos:' .. queue, combo)

local row = call('HGET', P .. 'queue', queue)
local waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
  next_lane, tokens, tokens_at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil, nil
if row then
  waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
    next_lane, tokens, tokens_at = unpacked(row)
end
call('HSET', P .. 'queue', queue, pack(waiting + 1, running, completed, dead, cancelled, blocked, archived, archived_dead,
  live + 1, processed, died, taken, next_lane, tokens, tokens_at))
-- 4096 is BLOCK of lib/names.lua.
call('RPUSH', P .. 'feed:' .. floor((number - 1) / 4096), packed .. pack(queue, task) .. '\1\1\168enqueued' .. instant
  .. '\167waiting\0\0\0\192\192\192' .. (delay > 0 and pack(delay) or '\192') .. '\192\192' .. pack(seq))
call('HSET', P .. 'store', 'seq', field, 'events', number)

if listener or call('EXISTS', P .. 'idle:' .. queue) == 1 then
  -- include lib/names
  -- include lib/write
  wake(queue, task, 1)
  if listener then
    register_watch(id, listener, watched, true)
  end
end
return seq
