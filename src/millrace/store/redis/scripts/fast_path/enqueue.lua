-- fast_path/enqueue: the fast path of enqueue, for specs with new ids in queues that accept all jobs. They cannot be
-- refused, so the records are assembled from parts that many of them share. Python chooses it (encode.py) and says which
-- queues allow it (control.py). fast_path/links.lua handles groups, unique keys and parents.
-- Repeats enqueue_simple of domain/rules/fast_path.py.
-- Takes {groups, watch}: {queue, task, priority, expires, delay, index of the constant part in ARGV, ids, tokens,
-- positions in the call or nil for all, links or nil}, and nil or {ids, listener, milliseconds}: which ids to watch, and
-- for whom. Bodies are in ARGV 5…, by position, followed by the constant parts of records without id and token. Returns
-- the first seq; or, if the fast path does not apply to some specs, their positions, and then nothing has changed.
if repeated then
  return repeated
end

local counters = call('HMGET', P .. 'store', 'seq', 'events')
local first_seq, first_number = tonumber(counters[1] or 0) + 1, tonumber(counters[2] or 0) + 1
local any_past, count, instant = call('EXISTS', P .. 'past') == 1, 0, pack(now)

local refused = {}
for _, group in ipairs(args[1]) do
  local ids, positions = group[7], group[9]
  local accepted = accepts_all(group[1])
  local known = accepted and read_all(P .. 'id', ids)
  local past = accepted and any_past and read_all(P .. 'past', ids)
  for i = 1, #ids do
    if not accepted or known[i] or past and past[i] then
      refused[#refused + 1] = positions and positions[i] or i
    end
  end
  count = count + #ids
end
for _, group in ipairs(#refused == 0 and args[1] or {}) do
  if group[10] and not link(group, first_seq, args[1]) then
    for i = 1, #group[7] do
      refused[#refused + 1] = group[9] and group[9][i] or i
    end
  end
end
if #refused > 0 then
  return refused
end

-- Write the jobs of one group. Returns how many are claimable, so that workers can be woken.
local events = {}
local function write_group(group)
  local queue, task, priority, expires, delay, constant, ids, tokens, positions, links = unpack(group, 1, 10)
  constant = ARGV[constant]
  local due_at, rare = delay > 0 and pack(now + delay) or instant, expires and pack({ expires_at = now + expires }) or '\192'
  local facts, facts_open, facts_rare = nil, nil, nil
  local event, is_open, opened = enqueued_event(queue, task, instant, delay), true, 0
  local records, bodies, names, ready, all, due, at = {}, {}, {}, {}, {}, {}, format('%.0f', now + delay)
  local expires_at = expires and format('%.0f', now + expires)
  for i = 1, #ids do
    local id, n, position = ids[i], 2 * i, positions and positions[i] or i
    local packed, token = pack(id), '\195' -- msgpack's true: the token is the id
    if tokens and tokens[i] ~= id then
      token = pack(tokens[i])
    end
    local seq = first_seq + position - 1
    local name, field = texts_of(seq) -- strings: each command would convert a number again
    if links then
      constant, rare, is_open = write_links(group, i, seq, name, field, at)
    end
    if is_open ~= facts_open or rare ~= facts_rare then
      facts, facts_open, facts_rare = waiting_facts(instant, due_at, is_open, rare), is_open, rare
    end
    records[n - 1], records[n] = field, new_record(packed, token, constant, facts, first_number + position - 1)
    bodies[n - 1], bodies[n] = field, ARGV[4 + position]
    names[n - 1], names[n] = id, field
    all[n - 1], all[n] = field, name
    if is_open then
      ready[2 * opened + 1], ready[2 * opened + 2] = at, name
      opened = opened + 1
    end
    if expires then
      due[n - 1], due[n] = expires_at, name
    end
    events[position] = packed .. event .. pack(seq)
  end
  each_part(records, 'HSET', P .. 'job', 2)
  each_part(bodies, 'HSET', P .. 'spec', 2)
  each_part(names, 'HSET', P .. 'id', 2)
  each_part(ready, 'ZADD', P .. 'r:' .. queue .. ':' .. task .. ':' .. priority, 2)
  each_part(all, 'ZADD', P .. 'q:' .. queue, 2)
  each_part(due, 'ZADD', P .. 'expire', 2)
  if opened > 0 then
    call('SADD', P .. 'combos:' .. queue, task .. ':' .. priority)
  end
  add_to_queue(queue, #ids, 0, 0, #ids, 0, links and links[5] and #ids or 0)
  return opened
end

local opened = {}
for i, group in ipairs(args[1]) do
  opened[i] = write_group(group)
end
write_all_links()
push_events(events, first_number)
call('HSET', P .. 'store', 'seq', first_seq + count - 1, 'events', first_number + count - 1)
for i, group in ipairs(args[1]) do
  wake(group[1], group[2], opened[i])
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
