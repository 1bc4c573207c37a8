-- time: changes of jobs because time has passed, done in limited parts by claims and upkeep.
-- Repeats Ledger.promote and Ledger.expire of domain/ledger.py; _cap_dead of domain/rules/upkeep.py.

function U.due(key, instant, limit)
  local found = seqs_of(call('ZRANGEBYSCORE', T.look(key), '-inf', instant, 'LIMIT', 0, limit))
  T.prefetch(found)
  return found
end

-- By how many a queue's dead jobs exceed its dead_cap, if upkeep has to evict or archive them.
function U.over_dead_cap(row)
  local settings = row.settings
  if not settings.dead_cap or settings.dead_overflow == 'reject' then
    return 0
  end
  return max(0, row.dead - row.archived_dead - settings.dead_cap)
end

-- Move group members that have become due into their lines. Only such a step changes which member is open.
function U.promote(limit)
  local seqs = U.due(KEY.outside, now, limit)
  for _, seq in ipairs(seqs) do
    local job = T.by_seq(seq)
    local line = job and S.line_of(job)
    if line then
      job.in_line = true
      T.update(job)
      S.elect(line)
    end
  end
  return #seqs
end

function U.expire(limit)
  local seqs = U.due(KEY.expire, now, limit)
  for _, seq in ipairs(seqs) do
    local job = T.by_seq(seq)
    if job and job.state == 'waiting' then -- burying an earlier one may have buried it too
      S.bury(job, 'ttl_expired')
      S.carry_out()
    end
  end
  return #seqs
end
