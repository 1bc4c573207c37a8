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

-- Add to the counters of a queue, in the order of lib/tables.lua.
local function add_to_queue(queue, more_waiting, more_running, more_completed, more_live, more_taken)
  local row = call('HGET', P .. 'queue', queue)
  local waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
    next_lane, tokens, tokens_at = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, nil, nil
  if row then
    waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
      next_lane, tokens, tokens_at = unpacked(row)
  end
  call('HSET', P .. 'queue', queue, pack(waiting + more_waiting, running + more_running, completed + more_completed,
    dead, cancelled, blocked, archived, archived_dead, live + more_live, processed + more_completed, died,
    taken + more_taken, next_lane, tokens, tokens_at))
end
