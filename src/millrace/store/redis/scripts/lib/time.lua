-- time: what becomes of jobs because time has passed, done in bounded pieces by whoever comes by.

function U.due(key, instant, limit)
  local found = call('ZRANGEBYSCORE', T.look(key), '-inf', instant, 'LIMIT', 0, limit)
  for i = 1, #found do
    found[i] = tonumber(found[i])
  end
  T.prefetch(found)
  return found
end

-- Let group members that have become due into their lines; time alone never changes who is open.
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
    if job and job.state == 'waiting' then -- it may have died with a parent meanwhile
      S.bury(job, 'ttl_expired')
      S.carry_out()
    end
  end
  return #seqs
end
