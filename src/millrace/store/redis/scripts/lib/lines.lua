-- lines: groups and lanes, limits of tasks, unique keys, dependencies, and how deleted jobs ended.

function T.line(queue, name)
  local place = queue .. ':' .. name
  local line = T.lines[place]
  if line == nil then
    local kept = call('HGET', KEY.line, place)
    line = false
    if kept then
      line = { queue = queue, name = name }
      line.waiting, line.live, line.processed, line.died, line.holder, line.open = unpacked(kept)
    end
    T.lines[place] = line
  end
  return line or nil
end

function T.put_line(line)
  local place = line.queue .. ':' .. line.name
  T.lines[place] = line
  T.changed_lines[place] = line
end

function T.drop_line(line)
  local place = line.queue .. ':' .. line.name
  T.lines[place] = false
  T.changed_lines[place] = false
end

function T.write_lines()
  for place, line in pairs(T.changed_lines) do
    T.hput(KEY.line, place, line and pack(line.waiting, line.live, line.processed, line.died, line.holder, line.open))
  end
  T.changed_lines = {}
end

function T.members(queue, name, limit)
  return seqs_of(call('ZRANGE', T.look(P .. 'm:' .. queue .. ':' .. name), 0, limit - 1))
end

-- ── limits of tasks ─────────────────────────────────────────────────────────────────────────────

function T.task(name)
  local row = T.tasks[name]
  if row == nil then
    local kept = call('HGET', KEY.task, name)
    row = false
    if kept then
      row = { name = name }
      row.running, row.tokens, row.tokens_at, row.limits = unpacked(kept)
    end
    T.tasks[name] = row
  end
  return row or nil
end

function T.put_task(row)
  T.tasks[row.name] = row
  T.changed_tasks[row.name] = row
end

function T.write_tasks()
  for name, row in pairs(T.changed_tasks) do
    T.hput(KEY.task, name, pack(row.running, row.tokens, row.tokens_at, row.limits))
  end
  T.changed_tasks = {}
end

-- ── unique keys: per queue, held by one job ─────────────────────────────────────────────────────

function T.hold(queue, key)
  local kept = T.hget(KEY.key, queue .. ':' .. key)
  if not kept then
    return nil
  end
  local hold = { queue = queue, key = key }
  hold.owner, hold.seq, hold.scope, hold.ends = unpacked(kept)
  return hold
end

-- The hold of a key, unless its window has passed.
function T.live_hold(queue, key)
  local hold = T.hold(queue, key)
  return hold and (not hold.ends or hold.ends > now) and hold or nil
end

function T.put_hold(hold)
  local name = hold.queue .. ':' .. hold.key
  T.hput(KEY.key, name, pack(hold.owner, hold.seq, hold.scope, hold.ends))
  T.zput(KEY.window, name, hold.ends or false)
end

function T.drop_hold(hold)
  local name = hold.queue .. ':' .. hold.key
  T.hput(KEY.key, name, false)
  T.zput(KEY.window, name, false)
end

-- ── dependencies by the parent's id, so that a later generation of it resolves them too ─────────

-- Most stores have no dependencies; then the end of a job need not look for dependents.
local function any_awaited()
  T.any_awaited = T.any_awaited or (call('EXISTS', KEY.awaited) == 1 and 'yes' or 'no')
  return T.any_awaited == 'yes'
end

function T.add_dependency(parent, child, nth)
  T.any_awaited = 'yes'
  call('SADD', KEY.awaited, parent)
  T.zput(P .. 'kids:' .. parent, member(child), child)
  T.zput(P .. 'open:' .. child, parent, nth)
end

function T.drop_dependency(parent, child)
  T.zput(P .. 'kids:' .. parent, member(child), false)
  T.zput(P .. 'open:' .. child, parent, false)
end

function T.children(parent)
  if not any_awaited() then
    return {}
  end
  return seqs_of(call('ZRANGE', T.look(P .. 'kids:' .. parent), 0, -1))
end

function T.drop_if_unawaited(parent)
  if any_awaited() and call('EXISTS', T.look(P .. 'kids:' .. parent)) == 0 then
    call('SREM', KEY.awaited, parent)
  end
end

function T.parents(child)
  return call('ZRANGE', T.look(P .. 'open:' .. child), 0, -1)
end

-- All jobs with a record that depend on an id, in order of seq.
local function dependents(parent)
  return seqs_of(call('ZRANGE', T.look(P .. 'dependents:' .. parent), 0, -1))
end

function T.dead_dependents(parents)
  local seqs, seen = {}, {}
  for _, parent in ipairs(parents) do
    for _, seq in ipairs(dependents(parent)) do
      if not seen[seq] then
        seen[seq] = true
        seqs[#seqs + 1] = seq
      end
    end
  end
  T.prefetch(seqs)
  local dead = {}
  for _, seq in ipairs(seqs) do
    local job = T.by_seq(seq)
    if job and job.state == 'dead' then
      dead[#dead + 1] = job
    end
  end
  table.sort(dead, function(one, other) return one.seq < other.seq end)
  return dead
end

-- Whether a dependent of this id is waiting or running.
function T.is_needed(parent)
  local seqs = dependents(parent)
  for first = 1, #seqs, 100 do
    local some = {}
    for i = first, min(#seqs, first + 99) do
      some[#some + 1] = seqs[i]
    end
    T.prefetch(some)
    for _, seq in ipairs(some) do
      local job = T.by_seq(seq)
      if job and CLASS[job.state] == 0 then
        return true
      end
    end
  end
  return false
end

-- ── generations whose record is deleted ─────────────────────────────────────────────────────────

function T.past(id)
  local kept = T.hget(KEY.past, id)
  return kept and unpacked(kept) or {}
end

function T.add_past(job)
  local gone = T.past(job.id)
  gone[#gone + 1] = { seq = job.seq, generation = job.generation, state = job.state, token = job.token,
    last_event = job.last_event }
  T.hput(KEY.past, job.id, pack(gone))
  T.zput(KEY.gone, member(job.seq) .. job.id, now)
end

function T.drop_past(id, seq)
  local kept = {}
  for _, past in ipairs(T.past(id)) do
    if past.seq ~= seq then
      kept[#kept + 1] = past
    end
  end
  T.hput(KEY.past, id, #kept > 0 and pack(kept))
  T.zput(KEY.gone, member(seq) .. id, false)
end

-- ── workers ─────────────────────────────────────────────────────────────────────────────────────

-- Whether the last heartbeat of a worker is older than its ttl by more than this many milliseconds.
function T.is_silent(worker, milliseconds)
  local _, last_beat, ttl = unpacked(sub(worker, 1, 27))
  return last_beat + ttl + milliseconds < now
end

function T.worker_gone(name)
  local worker = name and call('HGET', KEY.worker, name)
  return not worker or T.is_silent(worker, 0)
end
