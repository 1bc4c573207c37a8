-- fast_path/links: what connects new jobs to others on the fast path of enqueue: groups, unique keys and parents. `link`
-- checks before anything is written that all keys are free, that all parents wait or run, and that no job runs before a
-- member of its group that is open already. Otherwise the fast path does not apply.
-- Repeats _Plan of domain/rules/admission.py; Step.added and Step.elect of domain/rules/step.py.
-- The links of a group of specs are {groups, keys, scope, window, parents}, with a value per spec in groups, keys and
-- parents, or false. The constant part of their records is in three pieces; the group and the key are between them.
local lines, places = {}, {} -- lines by place (queue and name), and the places of all of them
local hashes, zsets, awaited = {}, {}, {} -- to write at the end, by key, so that a command has many values

local function read_lines(queue, groups)
  local unread = {}
  for i = 1, #groups do
    local place = queue .. ':g:' .. groups[i]
    if lines[place] == nil then
      lines[place], unread[#unread + 1] = false, place
    end
  end
  local kept = read_all(P .. 'line', unread)
  for i, place in ipairs(unread) do
    local line = { waiting = 0, live = 0, processed = 0, died = 0 }
    if kept[i] then
      line.waiting, line.live, line.processed, line.died, line.holder, line.open = unpacked(kept[i])
    end
    line.is_taken = line.holder ~= nil or line.open ~= nil
    lines[place], places[#places + 1] = line, place
  end
end

-- Count the new members of lines. In a line that has neither a holder nor an open job, open the first of them by priority
-- and seq. False if one of them comes before a job that is open already.
local function join_lines(group, first_seq)
  local queue, priority, groups, positions = group[1], group[3], group[10][1], group[9]
  read_lines(queue, groups)
  for i = 1, #groups do
    local place, seq = queue .. ':g:' .. groups[i], first_seq + (positions and positions[i] or i) - 1
    local line = lines[place]
    line.waiting, line.live = line.waiting + 1, line.live + 1
    if not line.is_taken then
      if not line.open or priority > line.priority or (priority == line.priority and seq < line.open) then
        line.open, line.priority = seq, priority
      end
    elseif not line.holder and priority > 0 then
      line.priority = line.priority or 15 - call('ZSCORE', P .. 'm:' .. place, format('%016.0f', line.open))
      if priority > line.priority then
        return false
      end
    end
  end
  return true
end

local function are_free(queue, keys)
  local names = {}
  for i = 1, #keys do
    names[i] = queue .. ':' .. keys[i]
  end
  return not has_any(P .. 'key', names)
end

-- Whether all parents that are not in this call are waiting or running.
local function are_live(parents, all_groups)
  local seen, stored = {}, {}
  for _, group in ipairs(all_groups) do
    for _, id in ipairs(group[7]) do
      seen[id] = true
    end
  end
  for _, after in ipairs(parents) do
    for _, parent in ipairs(after) do
      if not seen[parent] then
        seen[parent], stored[#stored + 1] = true, parent
      end
    end
  end
  local seqs = read_all(P .. 'id', stored)
  for i = 1, #stored do
    local record = seqs[i] and call('HGET', P .. 'job', seqs[i])
    local facts = record and { cmsgpack.unpack_limit(record, 18, 2) }
    local state = facts and facts[19]
    if state ~= 'waiting' and state ~= 'running' then
      return false
    end
  end
  return true
end

-- Whether the jobs can wait for their parents: none is unknown or has ended, and no stored job waits for one of these
-- jobs, so that there is no cycle. Python has checked that a parent in the same call comes before its children.
local function may_wait(ids, parents, all_groups)
  if call('EXISTS', P .. 'awaited') == 1 then
    for _, id in ipairs(ids) do
      if call('SISMEMBER', P .. 'awaited', id) == 1 then
        return false
      end
    end
  end
  return are_live(parents, all_groups)
end

local function link(group, first_seq, all_groups)
  local groups, keys, _, _, parents = unpack(group[10], 1, 5)
  return (not keys or are_free(group[1], keys)) and (not parents or may_wait(group[7], parents, all_groups))
    and (not groups or join_lines(group, first_seq))
end

local function hold_key(links, i, queue, id, seq, name, field)
  local key, scope = links[2][i], links[3]
  local place, ends = queue .. ':' .. key, scope == 'window' and now + links[4] or nil
  put(hashes, P .. 'key', place, pack(id, seq, scope, ends))
  call('ZADD', P .. 'keyed:' .. key, field, name)
  if ends then
    put(zsets, P .. 'window', ends, place)
  end
  return pack(key)
end

local function wait_for(parents, name, field)
  put(hashes, P .. 'after', field, pack(parents))
  for nth, parent in ipairs(parents) do
    awaited[#awaited + 1] = parent
    put(zsets, P .. 'dependents:' .. parent, field, name)
    put(zsets, P .. 'kids:' .. parent, field, name)
    put(zsets, P .. 'open:' .. field, nth, parent)
  end
  return #parents
end

-- The packed map of a job's rare fields. Most jobs of a call have the same.
local rare_maps = {}
local function rare_map(expires, in_line, blocked)
  local name = (expires or '') .. (in_line and 'l' or ':') .. (blocked or '')
  if not rare_maps[name] then
    local rare = { expires_at = expires and now + expires or nil, in_line = in_line, blocked = blocked }
    rare_maps[name] = next(rare) ~= nil and pack(rare) or '\192'
  end
  return rare_maps[name]
end

-- Write the links of one job. Returns the constant part of its record, its rare fields, and whether it is open.
local function write_links(group, i, seq, name, field, at)
  local queue, _, priority, expires, _, constant, ids, _, _, links = unpack(group, 1, 10)
  local is_open, packed_group, packed_key, in_line, blocked = true, '\192', '\192', nil, nil
  if links[1] then
    local of = links[1][i]
    local place = queue .. ':g:' .. of
    is_open, in_line, packed_group = lines[place].open == seq, true, pack(of)
    put(zsets, P .. 'grouped:' .. of, field, name)
    put(zsets, P .. 'm:' .. place, 15 - priority, name)
    if not is_open then
      put(zsets, P .. 'aside:' .. queue, at, name)
    end
  end
  if links[2] then
    packed_key = hold_key(links, i, queue, ids[i], seq, name, field)
  end
  if links[5] then
    is_open, blocked = false, wait_for(links[5][i], name, field)
  end
  return ARGV[constant] .. packed_group .. ARGV[constant + 1] .. packed_key .. ARGV[constant + 2],
    rare_map(expires, in_line, blocked), is_open
end

local function write_all_links()
  for _, place in ipairs(places) do
    local line = lines[place]
    put(hashes, P .. 'line', place,
      pack(line.waiting, line.live, line.processed, line.died, line.holder, line.open))
  end
  for key, values in pairs(hashes) do
    each_part(values, 'HSET', key, 2)
  end
  for key, values in pairs(zsets) do
    each_part(values, 'ZADD', key, 2)
  end
  each_part(awaited, 'SADD', P .. 'awaited')
end
