-- events: the feed, in blocks of 4,096 that are appended to at the end and dropped at the start. The number of an
-- event is its cursor, and each names the one before of the same job: that chain is the job's history.
function T.block_of(number)
  return P .. 'feed:' .. floor((number - 1) / BLOCK)
end

-- Eighteen values one after the other; whoever reads them puts the head of a list before them.
-- The seq stands last: Lua looks at few bytes of a long text to tell it from others, and always at the last one.
function T.log(job, kind, worker, lease, duration, delay, reason, failure)
  job.events = job.events + 1
  local counters = T.counters()
  counters.events = counters.events + 1
  T.feed[#T.feed + 1] = pack(job.id, job.queue, job.task, job.generation, job.events, kind, now,
    job.state, job.attempt, job.failures, job.last_event, worker, lease, duration, delay, reason, failure, job.seq)
  job.last_event = counters.events
end

-- Of an event: when it was, and the one before it of the same job.
function T.instant_and_previous(event)
  local _, _, _, _, _, _, _, at, _, _, _, previous = cmsgpack.unpack_limit(event, 11, 0)
  return at, previous
end

-- The events after a cursor, at most `limit`; the caller has seen to it that none of them is trimmed.
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

-- The block at the start has lost its head: positions in it are counted from the first event that is kept.
function T.in_block(number, count)
  local start = floor((number - 1) / BLOCK) * BLOCK
  local gone = max(0, T.counters().trimmed - start)
  local at = number - 1 - start - gone
  return call('LRANGE', T.block_of(number), at, at + count - 1)
end
