-- open: how every script begins. The keys, the clock, and whether this very call was answered before.
-- KEYS  1 the store's prefix, hash tag included: all keys of the store lie in one slot
-- ARGV  1 the caller's slot, 2 the number of its call ('' for a mere question), 3 the instant in tests, else '',
--       4 what is asked, as msgpack, 5… bodies: bytes that no script looks into
local P = KEYS[1]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, byte, char = string.format, string.sub, string.byte, string.char
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local function server_time()
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- A number in nine bytes, as msgpack has it, so that what follows is found without a look at it.
local function wide(number)
  return char(0xcf) .. struct.pack('>I8', number)
end

local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or server_time()
local asked = unpacked(ARGV[4])
local MEMO = P .. 'memo:' .. ARGV[1]

-- A caller has one call under way per slot and repeats it until it has an answer. The answer is kept in the same
-- atomic step as what was done, so whoever lost it gets it again, and nothing is done twice.
local repeated = false
if ARGV[2] ~= '' then
  local kept = call('GET', MEMO)
  if kept then
    local number, answer = unpacked(kept)
    if number == tonumber(ARGV[2]) then
      repeated = answer
    elseif number > tonumber(ARGV[2]) then -- it was long on its way, and its caller has gone on since
      return redis.error_reply('SUPERSEDED by a later call of the same caller; nothing was done')
    end
  end
end
