-- import_records: add exported jobs, deleted generations and unique keys; known ones stay as they are.
-- Takes {items, events, move}. An item is {'job', spec, facts, waits_for, hold, ended in line}, {'past', id, generation, state,
-- token, gone_at} or {'key', queue, key, owner, scope, ends}; an event is {number of its item, values as in T.log}.
-- Returns the number of new items, or -1 if the store is not the target of this move.
-- Repeats import_records of domain/rules/importing.py.
-- include lib/closing
if not is_target(args[3]) then
  return -1
end
local items, events, chains, new = args[1], args[2], {}, 0

local function is_past(id, generation)
  for _, past in ipairs(T.past(id)) do
    if past.generation == generation then
      return true
    end
  end
  return false
end

local function insert(spec, facts)
  local generation, state, enqueued_at, available_at, count, open, attempt, started_at, finished_at, result_until,
    result, failure, attempts, rare, log, progress = unpack(facts, 1, 16)
  local job = T.insert(spec, T.next_seq(), generation)
  job.state, job.enqueued_at, job.available_at, job.events, job.open = state, enqueued_at, available_at, count, open
  job.attempt, job.started_at, job.finished_at, job.result_until = attempt, started_at, finished_at, result_until
  job.expires_at = nil
  for name, value in pairs(rare) do
    job[name] = value
  end
  if result then
    job.result = true
    T.hput(KEY.result, job.seq, ARGV[result])
  end
  if log then
    X.put_log(job, ARGV[log])
  end
  if progress then
    job.progress = true
    T.hput(KEY.progress, job.seq, ARGV[progress])
  end
  if failure then
    job.error = true
    T.hput(KEY.error, job.seq, failure)
  end
  for _, one in ipairs(attempts) do
    job.attempts = true
    call('RPUSH', P .. 'attempts:' .. job.seq, char(0x95) .. pack(unpack(one, 1, 5)))
  end
  return job
end

local function count(job)
  local row = T.queue(job.queue)
  row[job.state] = row[job.state] + 1
  if job.state == 'waiting' then
    row.blocked = row.blocked + (job.blocked > 0 and 1 or 0)
    row.live = row.live + (job.hook and 0 or 1)
  end
  if job.archived then
    row.archived = row.archived + 1
    row.archived_dead = row.archived_dead + (job.state == 'dead' and 1 or 0)
  end
  T.put_queue(row)
end

local function join_line(job, ended)
  local line = job.state == 'waiting' and S.line_of(job)
  if line then
    line.waiting, line.live = line.waiting + 1, line.live + 1
    line.processed, line.died = ended[1], ended[2]
    line.holder = job.holds and job.seq or line.holder
    line.open = job.open and job.seq or line.open
    T.put_line(line)
  end
end

local function import_job(item)
  local spec = A.spec(item[2])
  local known = T.by_id(spec.id)
  if known and known.generation == item[3][1] then
    return nil
  end
  local job = insert(spec, item[3])
  count(job)
  join_line(job, item[6])
  for nth, parent in ipairs(item[4]) do
    T.add_dependency(parent, job.seq, nth)
  end
  local hold = item[5]
  if hold then
    T.put_hold({ queue = spec.queue, key = spec.key, owner = spec.id, seq = job.seq, scope = hold[1], ends = hold[2] })
  end
  return job
end

local function import_past(item)
  local _, id, generation, state, token, gone_at = unpack(item, 1, 6)
  if is_past(id, generation) then
    return nil
  end
  return { id = id, seq = T.next_seq(), generation = generation, state = state, token = token, gone_at = gone_at,
    last_event = 0 }
end

local function import_key(item)
  local _, queue, key, owner, scope, ends = unpack(item, 1, 6)
  if not T.hold(queue, key) then
    T.put_hold({ queue = queue, key = key, owner = owner, seq = 0, scope = scope, ends = ends })
    new = new + 1
  end
end

for i, item in ipairs(items) do
  if item[1] == 'job' then
    chains[i] = import_job(item)
  elseif item[1] == 'past' then
    chains[i] = import_past(item)
  else
    import_key(item)
  end
end

local counters = T.counters()
for _, event in ipairs(events) do
  local chain = chains[event[1]]
  if chain then
    local _, id, queue, task, generation, n, kind, at, state, attempt, failures, worker, lease, duration, delay, reason,
      failure = unpack(event, 1, 17)
    counters.events = counters.events + 1
    T.feed[#T.feed + 1] = pack(id, queue, task, generation, n, kind, at, state, attempt, failures, chain.last_event,
      worker, lease, duration, delay, reason, failure, chain.seq)
    chain.last_event = counters.events
  end
end

for _, chain in pairs(chains) do
  new = new + 1
  if chain.gone_at then
    local gone = T.past(chain.id)
    gone[#gone + 1] = { seq = chain.seq, generation = chain.generation, state = chain.state, token = chain.token,
      last_event = chain.last_event }
    T.hput(KEY.past, chain.id, pack(gone))
    T.zput(KEY.gone, member(chain.seq) .. chain.id, chain.gone_at)
  end
end
T.flush()
return new
