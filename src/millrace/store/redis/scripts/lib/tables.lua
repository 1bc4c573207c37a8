-- tables: the data that the rules work on. Records are read once and written once per step. Every index is derived from
-- the fields of a job (`places`), and is updated before it is read.
local KEY = setmetatable({}, { __index = function(known, name)
  local key = P .. name
  known[name] = key
  return key
end })

local CLASS = { waiting = 0, running = 0, completed = 2 ^ 50, dead = 2 * 2 ^ 50, cancelled = 3 * 2 ^ 50 }

local T = { jobs = {}, ids = {}, dirty = {}, queues = {}, changed = {}, lines = {}, changed_lines = {}, tasks = {},
  changed_tasks = {}, zsets = {}, hashes = {}, feed = {}, combos = {}, wakes = {}, ended = {}, loaded_counters = false,
  names = {}, any_awaited = false }

-- A number as nine bytes of msgpack, so that what follows is at a fixed offset.
local function wide(number)
  return char(0xcf) .. struct.pack('>I8', number)
end

-- A job's name in the indexes, and the seqs of such names.
local function member(seq)
  return format('%016.0f', seq)
end

local function seqs_of(names)
  for i = 1, #names do
    names[i] = tonumber(names[i])
  end
  return names
end

-- ── overlays: changes of this step that are not written yet; reads include them ─────────────────

function T.zput(key, name, score)
  local changes = T.zsets[key]
  if not changes then
    changes = {}
    T.zsets[key] = changes
  end
  changes[name] = score
end

local function write_zset(key, changes)
  local put, drop = {}, {}
  for name, score in pairs(changes) do
    if score then
      put[#put + 1] = score
      put[#put + 1] = name
    else
      drop[#drop + 1] = name
    end
  end
  each_part(drop, 'ZREM', key)
  each_part(put, 'ZADD', key, 2)
end

function T.hput(key, field, value)
  local changes = T.hashes[key]
  if not changes then
    changes = {}
    T.hashes[key] = changes
  end
  changes[field] = value
end

function T.hget(key, field)
  local changes = T.hashes[key]
  local changed = changes and changes[field]
  if changed ~= nil then
    return changed
  end
  return call('HGET', key, field)
end

local function write_hash(key, changes)
  local put, drop = {}, {}
  for field, value in pairs(changes) do
    if value then
      put[#put + 1] = field
      put[#put + 1] = value
    else
      drop[#drop + 1] = field
    end
  end
  each_part(drop, 'HDEL', key)
  each_part(put, 'HSET', key, 2)
end

-- ── the store's counters ────────────────────────────────────────────────────────────────────────

function T.counters()
  local counters = T.loaded_counters
  if not counters then
    local kept = call('HMGET', KEY.store, 'seq', 'events', 'trimmed')
    counters = { seq = tonumber(kept[1] or 0), events = tonumber(kept[2] or 0), trimmed = tonumber(kept[3] or 0) }
    T.loaded_counters = counters
  end
  return counters
end

function T.next_seq()
  local counters = T.counters()
  counters.seq = counters.seq + 1
  return counters.seq
end

-- ── queues ──────────────────────────────────────────────────────────────────────────────────────

function T.settings(name)
  local kept = call('HGET', KEY.settings, name)
  return kept and unpacked(kept) or DEFAULT_SETTINGS
end

function T.queue(name)
  local row = T.queues[name]
  if not row then
    local kept = call('HGET', KEY.queue, name)
    row = { name = name, settings = T.settings(name) }
    if kept then
      row.waiting, row.running, row.completed, row.dead, row.cancelled, row.blocked, row.archived, row.archived_dead,
        row.live, row.processed, row.died, row.taken, row.next_lane, row.tokens, row.tokens_at = unpacked(kept)
    else
      row.waiting, row.running, row.completed, row.dead, row.cancelled, row.blocked, row.archived, row.archived_dead,
        row.live, row.processed, row.died, row.taken, row.next_lane = 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    end
    T.queues[name] = row
  end
  return row
end

function T.put_queue(row)
  T.changed[row.name] = row
end

function T.write_queues()
  for name, row in pairs(T.changed) do
    T.hput(KEY.queue, name, pack(row.waiting, row.running, row.completed, row.dead, row.cancelled, row.blocked,
      row.archived, row.archived_dead, row.live, row.processed, row.died, row.taken, row.next_lane, row.tokens,
      row.tokens_at))
  end
  T.changed = {}
end

-- Note that more jobs may be claimable at a place (domain/rules/outlook.py), to wake sleepers. Either part may be nil.
function T.wake(queue, task, jobs)
  local place = (queue or '') .. '\0' .. (task or '')
  local hint = T.wakes[place] or { queue = queue, task = task, jobs = 0 }
  hint.jobs = hint.jobs + jobs
  T.wakes[place] = hint
end
