-- enqueue_plain: specs without key, group or parents, under ids that nobody has seen. Nothing can refuse them and
-- nothing follows from them, so the records are put together from parts that are the same in all of them.
-- Asks {groups, watch}: {queue, task, priority, expires, delay, number of the constant part among ARGV, ids, tokens},
-- and nil or {ids, listener, milliseconds}: who is to be told of the end of some of them. Bodies are in ARGV 5…, in the
-- same order, and after them the constant parts of records, but for id and token. Answers the first seq, or -1: not
-- plain after all.
if repeated then
  return repeated
end

local any_past = call('EXISTS', P .. 'past') == 1
for _, group in ipairs(asked[1]) do
  local settings, ids = call('HGET', P .. 'settings', group[1]), group[7]
  settings = settings and unpacked(settings)
  if settings and (settings.lanes or settings.max_depth or (settings.dead_overflow == 'reject' and settings.dead_cap)) then
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

for _, group in ipairs(asked[1]) do
  local queue, task, priority, expires, delay, constant, ids, tokens = unpack(group, 1, 8)
  constant = ARGV[constant]
  -- What lib/jobs.lua and lib/events.lua write, put together from bytes: a waiting job at its first event.
  local facts = '\1\167waiting' .. instant .. (delay > 0 and pack(now + delay) or instant)
    .. '\1\195\0\192\192\192\192\192\192\194' .. (expires and pack({ expires_at = now + expires }) or '\192')
  local told = pack(queue, task) .. '\1\1\168enqueued' .. instant .. '\167waiting\0\0\0\192\192\192'
    .. (delay > 0 and pack(delay) or '\192') .. '\192\192'
  local records, bodies, names, ready, all, due, at = {}, {}, {}, {}, {}, {}, format('%.0f', now + delay)
  local expires_at = expires and format('%.0f', now + expires)
  for i = 1, #ids do
    local id, n = ids[i], 2 * i
    local packed = pack(id)
    local token = '\195' -- true: it is the id
    if tokens and tokens[i] ~= id then
      token = pack(tokens[i])
    end
    seq, number, body = seq + 1, number + 1, body + 1
    local name, field = texts_of(seq) -- a number would be made a text anew by each command it is handed to
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
    events[#events + 1] = packed .. told .. pack(seq)
  end
  each_part(records, 'HSET', P .. 'job', 2)
  each_part(bodies, 'HSET', P .. 'spec', 2)
  each_part(names, 'HSET', P .. 'id', 2)
  each_part(ready, 'ZADD', P .. 'r:' .. queue .. ':' .. task .. ':' .. priority, 2)
  each_part(all, 'ZADD', P .. 'q:' .. queue, 2)
  each_part(due, 'ZADD', P .. 'expire', 2)
  call('SADD', P .. 'combos:' .. queue, task .. ':' .. priority)
  local row = call('HGET', P .. 'queue', queue)
  local waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
    next_lane, tokens_left, tokens_at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil, nil
  if row then
    waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
      next_lane, tokens_left, tokens_at = unpacked(row)
  end
  call('HSET', P .. 'queue', queue, pack(waiting + #ids, running, completed, dead, cancelled, blocked, archived,
    archived_dead, live + #ids, processed, died, taken, next_lane, tokens_left, tokens_at))
end
push_events(events, first_number)
call('HSET', P .. 'store', 'seq', seq, 'events', number)
for _, group in ipairs(asked[1]) do
  wake(group[1], #group[7])
end
if asked[2] then
  for _, id in ipairs(asked[2][1]) do
    be_told(id, asked[2][2], asked[2][3], true)
  end
end
if ARGV[2] ~= '' then -- else every spec has a token, which tells a call that is sent again
  call('SET', MEMO, pack(tonumber(ARGV[2]), first_seq), 'EX', REMEMBERED)
end
return first_seq
