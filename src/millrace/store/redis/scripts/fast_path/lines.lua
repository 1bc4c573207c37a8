-- fast_path/lines: groups on the fast paths of claim and settle. Each of these jobs is the only one of its group that is
-- open or running. `hold_lines` and `leave_lines` only read, and return what to write, or nil if the fast path does not
-- apply; `write_left` writes what `leave_lines` has returned.
-- Repeats Step.claimed and Step.elect of domain/rules/step.py.
local function place_of(queue, group)
  return queue .. ':g:' .. group
end

-- The lines after these open jobs are claimed: places and packed lines, one after the other.
local function hold_lines(places, seqs)
  local kept, written = read_all(P .. 'line', places), {}
  for i = 1, #places do
    if not kept[i] then
      return nil
    end
    local waiting, live, processed, died, holder, open = unpacked(kept[i])
    if holder or open ~= seqs[i] then
      return nil
    end
    written[2 * i - 1], written[2 * i] = places[i], pack(waiting - 1, live, processed, died, seqs[i], nil)
  end
  return written
end

-- Mark the record of a waiting job as open. Returns the record, its task, its priority and when it is due.
local function opened(record)
  local at, _, _, _, task, priority, _, _, _, _, _, _, _, _, _, _, _, _, state, _, available_at
    = cmsgpack.unpack_limit(record, 21, 2)
  if state ~= 'waiting' then
    return nil
  end
  return sub(record, 1, at) .. '\195' .. sub(record, at + 2), task, priority, available_at
end

-- The lines after these jobs have completed, and the member of each that may run next: the first by priority and seq.
local function leave_lines(places, queues, seqs)
  local left = { lines = {}, dropped = {}, records = {}, ready = {}, aside = {}, combos = {}, wakes = {} }
  local kept, nexts, next_of = read_all(P .. 'line', places), {}, {}
  for i = 1, #places do
    nexts[#nexts + 1] = call('ZRANGE', P .. 'm:' .. places[i], 0, 0)[1]
    next_of[i] = #nexts
  end
  local fields = {}
  for i = 1, #nexts do
    fields[i] = field_of(nexts[i], tonumber(nexts[i]))
  end
  local records, last = read_all(P .. 'job', fields), 0
  for i = 1, #places do
    if not kept[i] then
      return nil
    end
    local waiting, live, processed, died, holder, open = unpacked(kept[i])
    if holder ~= seqs[i] or open then
      return nil
    end
    local n, elected = next_of[i], nil
    if n > last then
      local record, task, priority, at = nil, nil, nil, nil
      if records[n] then
        record, task, priority, at = opened(records[n])
      end
      if not record then
        return nil
      end
      elected, last = tonumber(nexts[n]), n
      local queue, combo = queues[i], task .. ':' .. priority
      put(left.records, P .. 'job', fields[n], record)
      put(left.ready, P .. 'r:' .. queue .. ':' .. combo, format('%.0f', at), nexts[n])
      put(left.aside, P .. 'aside:' .. queue, nexts[n])
      put(left.combos, P .. 'combos:' .. queue, combo)
      put(left.wakes, queue, task)
    end
    if live == 1 then
      left.dropped[#left.dropped + 1] = places[i]
    else
      put(left.lines, P .. 'line', places[i], pack(waiting, live - 1, processed + 1, died, nil, elected))
    end
  end
  return left
end

local function write_left(left)
  each_part(left.dropped, 'HDEL', P .. 'line')
  for _, batch in ipairs({ { left.aside, 'ZREM', 1 }, { left.records, 'HSET', 2 }, { left.lines, 'HSET', 2 },
    { left.ready, 'ZADD', 2 }, { left.combos, 'SADD', 1 } }) do
    for key, values in pairs(batch[1]) do
      each_part(values, batch[2], key, batch[3])
    end
  end
end

-- Wake a worker for each job that was opened.
local function wake_for(left)
  for queue, tasks in pairs(left.wakes) do
    local counts = {}
    for _, task in ipairs(tasks) do
      counts[task] = (counts[task] or 0) + 1
    end
    for task, count in pairs(counts) do
      wake(queue, task, count)
    end
  end
end

-- The names of the keys that these completed jobs free: those that they hold as long as they are live.
-- Takes the names of their keys in the hash of holds, and their seqs.
local function freed_keys(names, seqs)
  local kept, freed = read_all(P .. 'key', names), {}
  for i = 1, #names do
    if kept[i] then
      local _, holder, scope = unpacked(kept[i])
      if holder == seqs[i] and scope == 'live' then
        freed[#freed + 1] = names[i]
      end
    end
  end
  return freed
end
