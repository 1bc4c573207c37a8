-- closing: read and write why the store is closed.
-- Repeats import_records of domain/rules/importing.py.

-- Whether the store is the target of this move, and not opened yet.
local function is_target(move)
  local kept = call('HGET', KEY.store, 'closed')
  local closed = kept and unpacked(kept)
  return closed and closed.move == move and (closed.stage == 'empty' or closed.stage == 'importing'), closed
end

-- Write why the store is closed (ARGV `index`) and the answer to refused changes (the next one); '' for none.
-- The answer is in the key that lib/open.lua reads, and in the field that lib/accepts.lua reads.
local function write_closing(index)
  local why, answer = ARGV[index], ARGV[index + 1]
  if why == '' then
    call('HDEL', KEY.store, 'closed')
  else
    call('HSET', KEY.store, 'closed', why)
  end
  if answer == '' then
    call('DEL', P .. 'closed')
    call('HDEL', KEY.settings, '')
  else
    call('SET', P .. 'closed', answer)
    call('HSET', KEY.settings, '', answer)
  end
end
