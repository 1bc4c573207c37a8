-- jobs: a record has the length of its constant part, that part (the fields of the spec that scripts need), and the
-- variable part. Fields that most jobs never change (decode.RARE_FIELDS) are in a map, absent if all have their defaults.
local FACTS = { __index = RARE_DEFAULTS }

function T.line_name(job)
  if job.lane then
    return 'l:' .. job.lane
  end
  return job.group and not job.hook and 'g:' .. job.group or nil
end

-- The key names of a queue's indexes, cached.
local function names_of(queue)
  local names = T.names[queue]
  if not names then
    names = { all = P .. 'q:' .. queue, again = P .. 'again:' .. queue, aside = P .. 'aside:' .. queue,
      outside = P .. 'o:' .. queue, dead = P .. 'dead:' .. queue, shown = P .. 'shown:' .. queue,
      finished = P .. 'fin:' .. queue, ready = {} }
    T.names[queue] = names
  end
  return names
end

function T.ready_key(queue, task, priority)
  return P .. 'r:' .. queue .. ':' .. task .. ':' .. priority
end

local function ready_of(names, job)
  local tasks = names.ready[job.task]
  if not tasks then
    tasks = {}
    names.ready[job.task] = tasks
  end
  local key = tasks[job.priority]
  if not key then
    key = T.ready_key(job.queue, job.task, job.priority)
    tasks[job.priority] = key
  end
  return key
end

local function places_in_line(job, names, at)
  local line = T.line_name(job)
  if not line then
    return
  end
  if not job.open then
    at[names.aside] = job.available_at
  end
  if job.in_line then
    at[P .. 'm:' .. job.queue .. ':' .. line] = 15 - job.priority
  elseif not job.holds then
    at[KEY.outside] = job.available_at
    at[names.outside] = job.available_at
  end
end

local function places_at_the_end(job, names, at)
  if job.state == 'dead' then
    at[names.dead] = job.finished_at
    if not job.archived then
      at[names.shown] = job.finished_at
    end
  elseif not (job.has_dependents and job.result_until) then -- repeats is_kept_for_children of domain/job.py
    at[names.finished] = job.finished_at
  end
  if job.next_retry_at then
    at[KEY.retry] = job.next_retry_at
  end
  if job.result_until then
    at[KEY.results] = job.result_until
  end
end

-- All indexes that have the job, with its score. The member name is the same in all: the padded seq.
local function places(job)
  local state, names = job.state, names_of(job.queue)
  local at = { [names.all] = CLASS[state] + job.seq }
  if job.group then
    at[P .. 'grouped:' .. job.group] = job.seq
  end
  if job.key then
    at[P .. 'keyed:' .. job.key] = job.seq
  end
  if state == 'running' then
    at[KEY.lease] = job.lease_until
  elseif state == 'waiting' then
    if job.open then
      at[ready_of(names, job)] = job.available_at
    end
    if job.expires_at then
      at[KEY.expire] = job.expires_at
    end
    if job.blocked == 0 then
      if job.failures > 0 then
        at[names.again] = job.available_at
      end
      places_in_line(job, names, at)
    end
  else
    places_at_the_end(job, names, at)
  end
  return at
end

-- The constant part as bytes, from a spec. A token that equals the id is stored as true.
function T.constants(spec)
  local part = pack(spec.id, spec.token == spec.id or spec.token, spec.queue, spec.task, spec.priority, spec.lease,
    spec.keep_result, spec.expires, spec.group, spec.retry_blocks, spec.key, spec.scope, spec.on_dependency,
    spec.on_dead_letter, spec.hook, spec.after ~= nil)
  return char(floor(#part / 256), #part % 256) .. part
end

function T.load(seq, record)
  local _, id, token, queue, task, priority, lease, keep_result, expires, group, retry_blocks, key, scope,
    on_dependency, on_dead_letter, hook, waits, generation, state, enqueued_at, available_at, events, open, attempt,
    started_at, worker, lease_id, lease_until, finished_at, result_until, result, rare, last_event
    = cmsgpack.unpack_limit(record, 40, 2)
  local job = { seq = seq, record = record, id = id, token = token == true and id or token, queue = queue, task = task,
    priority = priority, lease = lease, keep_result = keep_result, expires = expires, group = group,
    retry_blocks = retry_blocks, key = key, scope = scope, on_dependency = on_dependency,
    on_dead_letter = on_dead_letter, hook = hook, waits = waits, generation = generation, state = state,
    enqueued_at = enqueued_at, available_at = available_at, events = events, open = open, attempt = attempt,
    started_at = started_at, worker = worker, lease_id = lease_id, lease_until = lease_until,
    finished_at = finished_at, result_until = result_until, result = result, last_event = last_event, places = false }
  if rare then
    for name, value in pairs(rare) do
      job[name] = value
    end
  end
  setmetatable(job, FACTS)
  job.places = places(job)
  return job
end

local function rare_facts(job)
  if not has_rare(job) then
    return nil
  end
  local rare = nil
  for i = 1, #RARE_FIELDS do
    local name = RARE_FIELDS[i]
    local value = job[name]
    if value ~= RARE_DEFAULTS[name] then
      rare = rare or {}
      rare[name] = value
    end
  end
  return rare
end

local function write_record(job)
  local record = job.record
  local constant = sub(record, 1, byte(record, 1) * 256 + byte(record, 2) + 2)
  job.record = constant .. pack(job.generation, job.state, job.enqueued_at, job.available_at, job.events, job.open,
    job.attempt, job.started_at, job.worker, job.lease_id, job.lease_until, job.finished_at, job.result_until,
    job.result, rare_facts(job), job.last_event)
  T.hput(KEY.job, job.seq, job.record)
end

-- ── finding them ────────────────────────────────────────────────────────────────────────────────

function T.prefetch(seqs)
  local unknown = {}
  for i = 1, #seqs do
    if T.jobs[seqs[i]] == nil then
      unknown[#unknown + 1] = seqs[i]
    end
  end
  for first = 1, #unknown, MOST do
    local last = min(#unknown, first + MOST - 1)
    local records = call('HMGET', KEY.job, unpack(unknown, first, last))
    for i = first, last do
      local record = records[i - first + 1]
      T.jobs[unknown[i]] = record and T.load(unknown[i], record)
    end
  end
end

function T.by_seq(seq)
  local job = T.jobs[seq]
  if job == nil then
    local record = call('HGET', KEY.job, seq)
    job = record and T.load(seq, record)
    T.jobs[seq] = job
  end
  return job or nil
end

-- The job if this lease still holds it, else nil.
function T.held(seq, lease_id)
  local job = T.by_seq(seq)
  return job and is_held(job.state, job.lease_id, lease_id) and job or nil
end

function T.prefetch_ids(ids)
  local unknown, seqs = {}, {}
  for i = 1, #ids do
    if T.ids[ids[i]] == nil then
      unknown[#unknown + 1] = ids[i]
    end
  end
  for first = 1, #unknown, MOST do
    local last = min(#unknown, first + MOST - 1)
    local found = call('HMGET', KEY.id, unpack(unknown, first, last))
    for i = first, last do
      local seq = found[i - first + 1]
      T.ids[unknown[i]] = seq and tonumber(seq)
      if seq then
        seqs[#seqs + 1] = tonumber(seq)
      end
    end
  end
  T.prefetch(seqs)
end

function T.by_id(id)
  local seq = T.ids[id]
  if seq == nil then
    local found = call('HGET', KEY.id, id)
    seq = found and tonumber(found)
    T.ids[id] = seq
  end
  return seq and T.by_seq(seq) or nil
end

-- ── changing them ───────────────────────────────────────────────────────────────────────────────

function T.insert(spec, seq, generation)
  local record = T.constants(spec) .. pack(generation, 'waiting', now, now + spec.delay, 0, false, 0, nil, nil, nil,
    nil, nil, nil, false, nil, 0)
  local job = T.load(seq, record)
  job.places = {}
  job.expires_at = spec.expires and now + spec.expires or nil
  T.jobs[seq] = job
  T.ids[job.id] = seq
  T.hput(KEY.id, job.id, seq)
  T.hput(KEY.spec, seq, spec.body)
  if spec.after then
    T.hput(KEY.after, seq, pack(spec.after))
    for _, parent in ipairs(spec.after) do
      T.zput(P .. 'dependents:' .. parent, member(seq), seq)
    end
  end
  T.dirty[seq] = job
  return job
end

function T.update(job)
  T.dirty[job.seq] = job
end

-- The ids of the job's parents, without duplicates.
function T.after(job)
  local kept = job.waits and T.hget(KEY.after, job.seq)
  local ids, seen = {}, {}
  for _, id in ipairs(kept and unpacked(kept) or {}) do
    if not seen[id] then
      seen[id] = true
      ids[#ids + 1] = id
    end
  end
  return ids
end

function T.delete(job)
  local seq = job.seq
  for _, parent in ipairs(T.after(job)) do
    T.zput(P .. 'dependents:' .. parent, member(seq), false)
  end
  T.jobs[seq] = false
  if T.ids[job.id] == seq or T.ids[job.id] == nil then
    T.ids[job.id] = false
    T.hput(KEY.id, job.id, false)
  end
  for _, key in ipairs({ KEY.job, KEY.spec, KEY.result, KEY.error, KEY.progress, KEY.log, KEY.after }) do
    T.hput(key, seq, false)
  end
  if job.attempts then
    call('DEL', P .. 'attempts:' .. seq)
  end
  job.deleted = true
  T.dirty[seq] = job
end

-- One more job may be claimable, or will enter its line: wake a sleeper.
local function wake_for_place(job, was, is)
  local names = names_of(job.queue)
  local ready = ready_of(names, job)
  if is[ready] and is[ready] ~= was[ready] then
    T.wake(job.queue, job.task, 1)
    local combos = T.combos[job.queue] or {}
    T.combos[job.queue] = combos
    combos[job.task .. ':' .. job.priority] = true
  elseif is[names.outside] and is[names.outside] ~= was[names.outside] then
    T.wake(job.queue, job.task, 1)
  end
end

-- Update the indexes for all jobs that have changed.
function T.index()
  local dirty = T.dirty
  if next(dirty) == nil then
    return
  end
  T.dirty = {}
  for seq, job in pairs(dirty) do
    local was, is, name = job.places, nil, member(seq)
    if job.deleted then
      is = {}
    else
      is = places(job)
      write_record(job)
      if job.state == 'waiting' then
        wake_for_place(job, was, is)
      elseif job.finished_at and CLASS[job.state] > 0 then
        T.ended[job.id] = true
      end
    end
    for key, score in pairs(is) do
      if was[key] ~= score then
        T.zput(key, name, score)
      end
    end
    for key in pairs(was) do
      if is[key] == nil then
        T.zput(key, name, false)
      end
    end
    job.places = is
  end
end

-- An index including the changes of this step.
function T.look(key)
  T.index()
  local changes = T.zsets[key]
  if changes then
    T.zsets[key] = nil
    write_zset(key, changes)
  end
  return key
end

-- Record every (queue, task, priority) ever used: a claim reads one index for each.
function T.write_combos()
  for queue, combos in pairs(T.combos) do
    local names = {}
    for name in pairs(combos) do
      names[#names + 1] = name
    end
    each_part(names, 'SADD', P .. 'combos:' .. queue)
  end
  T.combos = {}
end

function T.combos_of(queue)
  T.index()
  T.write_combos()
  local combos = {}
  for _, name in ipairs(call('SMEMBERS', P .. 'combos:' .. queue)) do
    local task, priority = name:match('^(.*):(%d+)$')
    combos[#combos + 1] = { queue = queue, task = task, priority = tonumber(priority),
      key = T.ready_key(queue, task, priority) }
  end
  return combos
end
