-- fast_path/enqueue: the fast path of enqueue, for simple specs with new ids. They cannot be refused and affect no other
-- job, so the records are assembled from parts that all of them share. Python chooses it for simple specs (encode.py) and
-- says which queues allow it (control.py).
-- Repeats enqueue_simple of domain/rules/fast_path.py.
-- Takes {groups, watch}: {queue, task, priority, expires, delay, index of the constant part in ARGV, ids, tokens}, and
-- nil or {ids, listener, milliseconds}: which ids to watch, and for whom. Bodies are in ARGV 5…, in the same order,
-- followed by the constant parts of records without id and token. Returns the first seq, or -1 if the fast path does
-- not apply.
if repeated then
  return repeated
end

local any_past = call('EXISTS', P .. 'past') == 1
for _, group in ipairs(args[1]) do
  local settings, ids = call('HGET', P .. 'settings', group[1]), group[7]
  if settings and not unpacked(settings).fast_enqueue then
    return -1
  end
  for first = 1, #ids, MOST do
    local last = min(#ids, first + MOST - 1)
    local known = call('HMGET', P .. 'id', unpack(ids, first, last))
    local gone = any_past and call('HMGET', P .. 'past', unpack(ids, first, last)) or {}
    for i = 1, last - first + 1 do
      if known[i] or gone[i] then
        return -1
      end
    end
  end
end

local kept = call('HMGET', P .. 'store', 'seq', 'events')
local seq, number, body, events = tonumber(kept[1] or 0), tonumber(kept[2] or 0), 4, {}
local first_seq, first_number, instant = seq + 1, number + 1, pack(now)

for _, group in ipairs(args[1]) do
  local queue, task, priority, expires, delay, constant, ids, tokens = unpack(group, 1, 8)
  constant = ARGV[constant]
  -- The same bytes that lib/jobs.lua and lib/events.lua write for a waiting job with its first event.
  local facts = '\1\167waiting' .. instant .. (delay > 0 and pack(now + delay) or instant)
    .. '\1\195\0\192\192\192\192\192\192\194' .. (expires and pack({ expires_at = now + expires }) or '\192')
  local event = pack(queue, task) .. '\1\1\168enqueued' .. instant .. '\167waiting\0\0\0\192\192\192'
    .. (delay > 0 and pack(delay) or '\192') .. '\192\192'
  local records, bodies, names, ready, all, due, at = {}, {}, {}, {}, {}, {}, format('%.0f', now + delay)
  local expires_at = expires and format('%.0f', now + expires)
  for i = 1, #ids do
    local id, n = ids[i], 2 * i
    local packed = pack(id)
    local token = '\195' -- msgpack's true: the token is the id
    if tokens and tokens[i] ~= id then
      token = pack(tokens[i])
    end
    seq, number, body = seq + 1, number + 1, body + 1
    local name, field = texts_of(seq) -- strings: each command would convert a number again
    local part = #packed + #token + #constant
    records[n - 1], records[n] = field, char(floor(part / 256), part % 256) .. packed .. token .. constant .. facts
      .. pack(number)
    bodies[n - 1], bodies[n] = field, ARGV[body]
    names[n - 1], names[n] = id, field
    ready[n - 1], ready[n] = at, name
    all[n - 1], all[n] = field, name
    if expires then
      due[n - 1], due[n] = expires_at, name
    end
    events[#events + 1] = packed .. event .. pack(seq)
  end
  each_part(records, 'HSET', P .. 'job', 2)
  each_part(bodies, 'HSET', P .. 'spec', 2)
  each_part(names, 'HSET', P .. 'id', 2)
  each_part(ready, 'ZADD', P .. 'r:' .. queue .. ':' .. task .. ':' .. priority, 2)
  each_part(all, 'ZADD', P .. 'q:' .. queue, 2)
  each_part(due, 'ZADD', P .. 'expire', 2)
  call('SADD', P .. 'combos:' .. queue, task .. ':' .. priority)
  add_to_queue(queue, #ids, 0, 0, #ids, 0)
end
push_events(events, first_number)
call('HSET', P .. 'store', 'seq', seq, 'events', number)
for _, group in ipairs(args[1]) do
  wake(group[1], group[2], #group[7])
end
if args[2] then
  for _, id in ipairs(args[2][1]) do
    register_watch(id, args[2][2], args[2][3], true)
  end
end
if ARGV[2] ~= '' then -- else every spec has a token, by which a repeated call is recognized
  store_reply(first_seq)
end
return first_seq
