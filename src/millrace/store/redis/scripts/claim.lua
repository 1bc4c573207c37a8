-- claim: claim due jobs in order, each with a new lease, within all limits.
-- Takes {queues, tasks or nil, limit, lease or nil, worker, claim id}; returns rows.
-- Repeats Ledger.claim of domain/ledger.py; Room of domain/rules/limits.py; pick of domain/rules/order.py.
local PROMOTIONS, FIRST_PIECE = 100, 8
local queues, tasks, limit, lease, worker, claim_id = unpack(args, 1, 6)

if repeated then
  return T.rows_of_claim(claim_id, repeated)
end

call('DEL', P .. 'none') -- allows writes although the memory is full: see docs/decisions/0014
local known = tasks and set_of(tasks)

-- ── how much may be taken ───────────────────────────────────────────────────────────────────────

local room, room_of_task, taken, taken_of_task, ahead, some_expired = {}, {}, {}, {}, {}, false

local function task_room(name)
  if not room_of_task[name] then
    local row = T.task(name)
    room_of_task[name] = row and L.allowance(row.limits, row) or L.UNLIMITED
    if row and L.is_ahead(row) then
      taken_of_task[name] = taken_of_task[name] or 0
    end
  end
  return room_of_task[name]
end

-- Reserve room for the first job of a range; false if a limit is reached or the job has expired.
local function take(range, seq)
  if ahead[range.queue] then
    taken[range.queue] = taken[range.queue] or 0
  end
  if room[range.queue] <= 0 or task_room(range.task) <= 0 then
    return false
  end
  if some_expired then
    local job = T.by_seq(seq)
    if not job or (job.expires_at and job.expires_at <= now) then
      return false
    end
  end
  room[range.queue] = room[range.queue] - 1
  room_of_task[range.task] = room_of_task[range.task] - 1
  taken[range.queue] = (taken[range.queue] or 0) + 1
  taken_of_task[range.task] = (taken_of_task[range.task] or 0) + 1
  return true
end

-- ── ranges of due jobs, and which is next ───────────────────────────────────────────────────────

-- Read the next jobs of a range, twice as many each time: most ranges need only the first one, and the cost of a claim
-- must not depend on how many jobs wait.
local function fill(range)
  local found = call('ZRANGEBYSCORE', T.look(range.key), '-inf', now, 'WITHSCORES', 'LIMIT', #range.seqs, range.piece)
  local seqs, at = range.seqs, range.at
  for i = 1, #found, 2 do
    seqs[#seqs + 1] = tonumber(found[i])
    at[#seqs] = tonumber(found[i + 1])
  end
  range.more = #found == 2 * range.piece
  range.piece = min(limit, 2 * range.piece)
end

local function is_before(a_first, a_second, a_third, b_first, b_second, b_third)
  if a_first ~= b_first then
    return a_first < b_first
  end
  if a_second ~= b_second then
    return a_second < b_second
  end
  return a_third < b_third
end

-- The next job of a queue: by priority, or the oldest of all by `fair_share`.
local function candidate(queue)
  local fair = queue.period > 0 and (queue.taken + 1) % queue.period == 0
  local best, best_at, best_seq = nil, nil, nil
  for _, range in ipairs(queue.ranges) do
    if range.more and range.first > #range.seqs then
      fill(range)
    end
    local at, seq = range.at[range.first], range.seqs[range.first]
    if seq then
      local rank, best_rank = -range.priority, best and -best.priority
      if fair then
        rank, best_rank = 0, 0
      end
      if not best or is_before(rank, at, seq, best_rank, best_at, best_seq) then
        best, best_at, best_seq = range, at, seq
      end
    end
  end
  return best, best_at, best_seq
end

U.promote(PROMOTIONS)
some_expired = U.expire(PROMOTIONS) == PROMOTIONS -- then `take` must skip expired jobs that are left
local sources, seen = {}, {}
for _, name in ipairs(queues) do
  if not seen[name] then
    seen[name] = true
    local row = T.queue(name)
    room[name] = L.allowance(row.settings, row)
    ahead[name] = L.is_ahead(row)
    if (room[name] > 0 or ahead[name]) and limit > 0 then
      local ranges = {}
      for _, range in ipairs(T.combos_of(name)) do
        if not known or known[range.task] then
          range.seqs, range.at, range.first, range.piece = {}, {}, 1, min(limit, FIRST_PIECE)
          fill(range)
          if #range.seqs > 0 then
            ranges[#ranges + 1] = range
          end
        end
      end
      sources[#sources + 1] = { ranges = ranges, taken = row.taken, period = row.settings.fair_period }
    end
  end
end

local picked = {}
while #picked < limit do
  local best, best_at, best_seq, owner = nil, nil, nil, nil
  for _, source in ipairs(sources) do
    local range, at, seq = candidate(source)
    if range and (not best or is_before(-range.priority, at, seq, -best.priority, best_at, best_seq)) then
      best, best_at, best_seq, owner = range, at, seq, source
    end
  end
  if not best then
    break
  end
  if take(best, best_seq) then
    picked[#picked + 1] = best_seq
    best.first = best.first + 1
    owner.taken = owner.taken + 1
  else
    best.seqs, best.at, best.first, best.more = {}, {}, 1, false
  end
end

for name, count in pairs(taken) do
  local row = T.queue(name)
  L.spend(row, row.settings, count)
  T.put_queue(row)
end
for name, count in pairs(taken_of_task) do
  local row = T.task(name)
  if row then
    L.spend(row, row.limits, count)
    T.put_task(row)
  end
end

local jobs = {}
T.prefetch(picked)
for _, seq in ipairs(picked) do
  local job = T.by_seq(seq)
  X.claim(job, worker, T.lease_id(claim_id, seq), lease or job.lease)
  local row = T.queue(job.queue)
  S.claimed(job, row)
  T.put_queue(row)
  jobs[#jobs + 1] = job
end
T.done(nil, picked)
return T.rows_of(jobs)
