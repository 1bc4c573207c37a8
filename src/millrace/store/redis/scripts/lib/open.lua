-- open: the start of every script: the clock, the arguments, and whether this call was already answered. A closed store
-- refuses every call that has a number. Repeats Ledger.refuse_if_closed of domain/ledger.py.
-- KEYS  1 the store's prefix, including the hash tag: all keys of the store are in one hash slot
-- ARGV  1 the reply slot, 2 the number of its call ('' if it can be repeated), 3 the instant in tests, else '',
--       4 the arguments as msgpack, 5… bodies: bytes that scripts only store
-- include lib/names
local P = KEYS[1]
local time = call('TIME')
local server_time = time[1] * 1000 + floor(time[2] / 1000)
local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or server_time
local args = unpacked(ARGV[4])
local MEMO, REMEMBERED = P .. 'memo:' .. ARGV[1], 600 -- seconds: longer than a caller repeats a call

-- A caller has one call in progress per reply slot and repeats it until it has a reply. The reply is stored in the
-- same atomic step as the changes, so a repeated call gets it again, and nothing happens twice.
local function store_reply(reply)
  call('SET', MEMO, pack(tonumber(ARGV[2]), reply), 'EX', REMEMBERED)
end

local repeated = false
if ARGV[2] ~= '' then
  local kept = call('GET', MEMO)
  if kept then
    local number, answer = unpacked(kept)
    if number == tonumber(ARGV[2]) then
      repeated = answer
      call('EXPIRE', MEMO, REMEMBERED) -- a write, so that WAIT and WAITAOF wait for the earlier changes too
    elseif number > tonumber(ARGV[2]) then -- a delayed call: its caller has already made later ones
      return redis.error_reply('SUPERSEDED by a later call of the same caller; nothing was done')
    end
  end
  local closed = not repeated and call('GET', P .. 'closed') -- reads and imports have no number
  if closed then
    return redis.error_reply('CLOSED ' .. closed)
  end
end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do
    set[name] = true
  end
  return set
end
