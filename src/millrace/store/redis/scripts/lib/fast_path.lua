-- fast_path: what the scripts in fast_path/ share. They keep everything in local variables, without the tables of the other
-- scripts, and write the same bytes as lib/jobs.lua and lib/events.lua.

-- The field of a job in the hashes: its seq without the leading zeros of its name in the indexes.
local field_starts, field_from, field_below = 16, 0, 10
local function field_of(name, seq)
  if seq < field_from or seq >= field_below then
    field_starts, field_from, field_below = 16, 0, 10
    while seq >= field_below do
      field_starts, field_from, field_below = field_starts - 1, field_below, field_below * 10
    end
  end
  return sub(name, field_starts)
end

-- A count as msgpack, mostly one byte. `pack` makes a string per argument and joins them, so parts that many records
-- share are packed once and inserted.
local function small(count)
  return count < 128 and char(count) or pack(count)
end

-- The name and the field of a job.
local function texts_of(seq)
  local name = format('%016.0f', seq)
  return name, field_of(name, seq)
end

local function accepts_all(queue)
  -- include lib/accepts
  return accepts
end

-- The values of many fields of a hash.
local function read_all(key, fields)
  local found = {}
  for first = 1, #fields, MOST do
    local part = call('HMGET', key, unpack(fields, first, min(#fields, first + MOST - 1)))
    for i = 1, #part do
      found[first + i - 1] = part[i]
    end
  end
  return found
end

local function has_any(key, fields)
  local values = read_all(key, fields)
  for i = 1, #fields do
    if values[i] then
      return true
    end
  end
  return false
end

-- Add one or two values to those that a command will write to a key, so that one command has many values.
local function put(batch, key, first, second)
  local values = batch[key]
  if not values then
    values = {}
    batch[key] = values
  end
  local count = #values
  values[count + 1], values[count + 2] = first, second
end

-- The packed rare fields that a job keeps when it is claimed or completed: none, or when it expires. nil if it has others;
-- then the fast path does not apply.
local function expiry_of(rare)
  for name in pairs(rare) do
    if name ~= 'expires_at' and name ~= 'in_line' then
      return nil
    end
  end
  return rare.expires_at and pack({ expires_at = rare.expires_at }) or '\192'
end

-- The record of a new job from its packed parts, as lib/jobs.lua writes it.
local function new_record(id, token, constant, facts, number)
  local part = #id + #token + #constant
  return char(floor(part / 256), part % 256) .. id .. token .. constant .. facts .. pack(number)
end

-- The variable part of the record of a new job, without its last event. `rare` is the packed map of its rare fields.
local function waiting_facts(instant, due, is_open, rare)
  return '\1\167waiting' .. instant .. due .. (is_open and '\1\195' or '\1\194') .. '\0\192\192\192\192\192\192\194' .. rare
end

-- The first event of a job, as lib/events.lua writes it, without the id before it and the seq after it.
local function enqueued_event(queue, task, instant, delay)
  return pack(queue, task) .. '\1\1\168enqueued' .. instant .. '\167waiting\0\0\0\192\192\192'
    .. (delay > 0 and pack(delay) or '\192') .. '\192\192'
end

-- Add to the counters of a queue, in the order of lib/tables.lua.
local function add_to_queue(queue, more_waiting, more_running, more_completed, more_live, more_taken, more_blocked)
  local row = call('HGET', P .. 'queue', queue)
  local waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
    next_lane, tokens, tokens_at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil, nil
  if row then
    waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
      next_lane, tokens, tokens_at = unpacked(row)
  end
  call('HSET', P .. 'queue', queue, pack(waiting + more_waiting, running + more_running, completed + more_completed,
    dead, cancelled, blocked + (more_blocked or 0), archived, archived_dead, live + more_live, processed + more_completed, died,
    taken + more_taken, next_lane, tokens, tokens_at))
end
