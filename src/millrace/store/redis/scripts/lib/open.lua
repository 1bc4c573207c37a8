-- open: how every script begins. The clock, what is asked, and whether this very call was answered before.
-- KEYS  1 the store's prefix, hash tag included: all keys of the store lie in one slot
-- ARGV  1 the caller's slot, 2 the number of its call ('' for a mere question), 3 the instant in tests, else '',
--       4 what is asked, as msgpack, 5… bodies: bytes that no script looks into
local P = KEYS[1]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, byte, char = string.format, string.sub, string.byte, string.char
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local time = call('TIME')
local server_time = time[1] * 1000 + floor(time[2] / 1000)
local now = ARGV[3] ~= '' and tonumber(ARGV[3]) or server_time
local asked = unpacked(ARGV[4])
local MEMO, REMEMBERED = P .. 'memo:' .. ARGV[1], 600 -- seconds: longer than anybody repeats a call
local MOST = 4000 -- values handed to one command
local BLOCK = 4096 -- events in one list of the feed

-- A caller has one call under way per slot and repeats it until it has an answer. The answer is kept in the same
-- atomic step as what was done, so whoever lost it gets it again, and nothing is done twice.
local repeated = false
if ARGV[2] ~= '' then
  local kept = call('GET', MEMO)
  if kept then
    local number, answer = unpacked(kept)
    if number == tonumber(ARGV[2]) then
      repeated = answer
      call('EXPIRE', MEMO, REMEMBERED) -- a write: who now waits for disk or replicas waits for what came before it
    elseif number > tonumber(ARGV[2]) then -- it was long on its way, and its caller has gone on since
      return redis.error_reply('SUPERSEDED by a later call of the same caller; nothing was done')
    end
  end
end
