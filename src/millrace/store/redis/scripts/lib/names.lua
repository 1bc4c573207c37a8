-- names: short names of what scripts use often, and constants.
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, byte, char = string.format, string.sub, string.byte, string.char
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local MOST = 4000 -- limit of values in one command
local BLOCK = 4096 -- events in one list of the feed
local CANCELS = '@cancels' -- in a place: a job that a worker runs is to be cancelled, as in domain/tables.py
local CANCEL_KEPT = 60000 -- milliseconds that a cancel is kept for a worker that did not wait for it
