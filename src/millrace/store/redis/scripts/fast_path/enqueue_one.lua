-- fast_path/enqueue_one: as fast_path/enqueue, for one simple spec with a token. Most of the cost of a script with so few
-- commands is its functions and tables, so it has as few as possible.
-- Repeats enqueue_simple of domain/rules/fast_path.py.
-- Takes {queue, task, priority, expires, delay, id, token, listener or nil, milliseconds}; the last two register a watch.
-- ARGV 5 is the body, 6 the constant part of the record without id and token. Returns the seq, or -1 if the fast path does
-- not apply.
local queue, task, priority, expires, delay, id, token, listener, watched = unpack(args, 1, 9)
if not accepts_all(queue)
  or call('EXISTS', P .. 'past') == 1 and call('HEXISTS', P .. 'past', id) == 1 then
  return -1
end
local counters = call('HMGET', P .. 'store', 'seq', 'events')
local seq, number, combo = (counters[1] or 0) + 1, (counters[2] or 0) + 1, task .. ':' .. priority
local name, field = texts_of(seq)
if call('HSETNX', P .. 'id', id, field) == 0 then
  return -1
end
local packed, instant = pack(id), pack(now)
local facts = waiting_facts(instant, delay > 0 and pack(now + delay) or instant, true,
  expires and pack({ expires_at = now + expires }) or '\192')
call('HSET', P .. 'job', field, new_record(packed, token == id and '\195' or pack(token), ARGV[6], facts, number))
call('HSET', P .. 'spec', field, ARGV[5])
call('ZADD', P .. 'r:' .. queue .. ':' .. combo, format('%.0f', now + delay), name)
call('ZADD', P .. 'q:' .. queue, field, name)
if expires then
  call('ZADD', P .. 'expire', format('%.0f', now + expires), name)
end
call('SADD', P .. 'combos:' .. queue, combo)
add_to_queue(queue, 1, 0, 0, 1, 0)
call('RPUSH', P .. 'feed:' .. floor((number - 1) / BLOCK),
  packed .. enqueued_event(queue, task, instant, delay) .. pack(seq))
call('HSET', P .. 'store', 'seq', field, 'events', number)
if call('EXISTS', P .. 'idle:' .. queue) == 1 or listener then
  local wake, register_watch = load_waking()
  wake(queue, task, 1)
  if listener then
    register_watch(id, listener, watched, true)
  end
end
return seq
