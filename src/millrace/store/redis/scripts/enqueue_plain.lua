-- enqueue_plain: specs without key, group or parents, under ids that nobody has seen. Nothing can refuse them and
-- nothing follows from them, so the records are put together from parts that are the same in all of them.
-- Asks {groups}: {queue, task, priority, lease, keep_result, expires, retry_blocks, on_dependency, on_dead_letter,
-- delay, ids, tokens}; bodies in ARGV 5…, in the same order. Answers the first seq, or -1: not plain after all.
if repeated then
  return repeated
end

local function takes_all(settings)
  local rejects = settings.dead_overflow == 'reject' and settings.dead_cap
  return not settings.lanes and not settings.max_depth and not rejects
end

local function all_unknown(ids)
  local any_past = call('EXISTS', KEY.past) == 1
  for first = 1, #ids, MOST do
    local last = min(#ids, first + MOST - 1)
    for _, key in ipairs({ KEY.id, any_past and KEY.past or nil }) do
      local found = call('HMGET', key, unpack(ids, first, last))
      for i = 1, last - first + 1 do
        if found[i] then
          return false
        end
      end
    end
  end
  return true
end

for _, group in ipairs(asked[1]) do
  if not takes_all(T.queue(group[1]).settings) or not all_unknown(group[11]) then
    return -1
  end
end

local counters, body = T.counters(), 4
local first_seq = counters.seq + 1

local function put_group(group)
  local queue, task, priority, lease, keep_result, expires, retry_blocks, on_dependency, on_dead_letter, delay, ids,
    tokens = unpack(group, 1, 12)
  local constant = pack(queue, task, priority, lease, keep_result, expires, nil, retry_blocks, nil, 'live',
    on_dependency, on_dead_letter, false, false)
  local rare = expires and { expires_at = now + expires } or nil
  local facts = pack(1, 'waiting', now, now + delay, 1, true, 0, nil, nil, nil, nil, nil, nil, false, rare)
  local told = pack(queue, task, 1, 1, 'enqueued', now, 'waiting', 0, 0, 0)
  local head, tail = T.ARRAY[12], ''
  if delay > 0 then
    head, tail = T.ARRAY[16], pack(nil, nil, nil, delay)
  end
  local records, bodies, names, ready, all, due = {}, {}, {}, {}, {}, {}
  local seq, number, feed, at = counters.seq, counters.events, T.feed, now + delay
  for i = 1, #ids do
    local id = ids[i]
    local token = tokens and tokens[i] or id
    local packed, name = pack(id), nil
    seq, number, body = seq + 1, number + 1, body + 1
    name = member(seq)
    local part = #packed + #constant
    local packed_token = token == id and '\195' or pack(token)
    part = part + #packed_token
    local n = 2 * i
    records[n - 1], records[n] = seq, char(floor(part / 256), part % 256) .. packed .. packed_token .. constant
      .. facts .. pack(number)
    bodies[n - 1], bodies[n] = seq, ARGV[body]
    names[n - 1], names[n] = id, seq
    ready[n - 1], ready[n] = at, name
    all[n - 1], all[n] = seq, name
    if expires then
      due[n - 1], due[n] = now + expires, name
    end
    feed[#feed + 1] = head .. packed .. told .. pack(seq) .. tail
  end
  counters.seq, counters.events = seq, number
  each_part(records, 'HSET', KEY.job, 2)
  each_part(bodies, 'HSET', KEY.spec, 2)
  each_part(names, 'HSET', KEY.id, 2)
  each_part(ready, 'ZADD', P .. 'r:' .. queue .. ':' .. task .. ':' .. priority, 2)
  each_part(all, 'ZADD', P .. 'q:' .. queue, 2)
  each_part(due, 'ZADD', KEY.expire, 2)
  call('SADD', P .. 'combos:' .. queue, task .. ':' .. priority)
  local row = T.queue(queue)
  row.waiting, row.live = row.waiting + #ids, row.live + #ids
  T.put_queue(row)
  T.stir(queue, #ids)
end

for _, group in ipairs(asked[1]) do
  put_group(group)
end
return T.done(first_seq)
