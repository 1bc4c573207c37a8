-- events: the feed, in blocks of 4,096 events, appended at the end and deleted at the start. Each event has the number
-- of the previous event of the same job; this chain is the job's history.
-- Repeats mark_of of domain/feed.py.
function T.block_of(number)
  return P .. 'feed:' .. floor((number - 1) / BLOCK)
end

-- Eighteen values without the array header, which Python adds. The seq is last: Lua hashes only some bytes of a long
-- string, always including the last one.
function T.log(job, kind, worker, lease, duration, delay, reason, failure)
  job.events = job.events + 1
  local counters = T.counters()
  counters.events = counters.events + 1
  T.feed[#T.feed + 1] = pack(job.id, job.queue, job.task, job.generation, job.events, kind, now,
    job.state, job.attempt, job.failures, job.last_event, worker, lease, duration, delay, reason, failure, job.seq)
  job.last_event = counters.events
end

-- The time of an event, and the number of the previous event of the same job.
function T.instant_and_previous(event)
  local _, _, _, _, _, _, _, at, _, _, _, previous = cmsgpack.unpack_limit(event, 11, 0)
  return at, previous
end

-- A hash that tells apart events with the same number.
function T.mark_of(event)
  local _, job, _, _, generation, n, kind, at, _, _, _, _, _, lease = cmsgpack.unpack_limit(event, 13, 0)
  local numbers = format('\n%.0f\n%.0f\n%s\n%.0f\n', generation, n, kind, at)
  local facts = job .. numbers .. (lease or '')
  return 'x' .. sub(redis.sha1hex(facts), 1, 8)
end

-- At most `limit` events after a cursor. The caller has checked that none of them is trimmed.
function T.events_after(after, limit)
  local counters = T.counters()
  local last, number, found = min(counters.events, after + limit), after + 1, {}
  while number <= last do
    local here = min(last - number + 1, BLOCK - (number - 1) % BLOCK)
    local part = T.in_block(number, here)
    for i = 1, #part do
      found[#found + 1] = part[i]
    end
    number = number + here
  end
  return found
end

-- The first block may be trimmed, so positions in it count from its first event that is kept.
function T.in_block(number, count)
  local start = floor((number - 1) / BLOCK) * BLOCK
  local gone = max(0, T.counters().trimmed - start)
  local at = number - 1 - start - gone
  return call('LRANGE', T.block_of(number), at, at + count - 1)
end

-- The events of one job that are kept, oldest first, from the number of its newest one.
function T.events_back(number)
  local back, events, trimmed = {}, {}, T.counters().trimmed
  while number > trimmed do
    local event = T.in_block(number, 1)[1]
    back[#back + 1] = event
    local _, previous = T.instant_and_previous(event)
    number = previous
  end
  for i = #back, 1, -1 do
    events[#events + 1] = back[i]
  end
  return events
end
