-- upkeep_rest: auto-retry of dead jobs, expired results, windows and sleepers.
-- Takes {limit, after how long to check again whether an expired result is still needed}; returns {retried, results
-- deleted, results checked}.
-- Repeats _auto_retry and _drop_results of domain/rules/upkeep.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit, look_again = args[1], args[2]
local retried, back = 0, {}
for _, seq in ipairs(U.due(KEY.retry, now, limit)) do
  local job = T.by_seq(seq)
  if job and job.state == 'dead' and not S.next_retry(job) then -- auto-retry has been disabled since
    job.next_retry_at = nil
    T.update(job)
  elseif job and job.state == 'dead' then
    job.auto_retries = job.auto_retries + 1
    if U.replay(job.id, 'auto_retry') == 'replayed' then
      retried = retried + 1
      back[#back + 1] = job.id
    else -- another job holds its key: try again later; this counts as one of its auto-retries
      local settings = T.queue(job.queue).settings
      local again = job.auto_retries < settings.auto_retries
      job.next_retry_at = again and now + settings.auto_retry_delay or nil
      T.update(job)
    end
  end
end

U.bring_children_back(back)

local results, dropped = U.due(KEY.results, now, limit), 0
for _, seq in ipairs(results) do
  local job = T.by_seq(seq)
  if job and job.has_dependents and T.is_needed(job.id) then
    job.result_until = now + max(look_again, floor((now - (job.finished_at or now)) / 10))
    T.update(job)
  elseif job and job.has_dependents and not job.keep_result then -- its result_until was only for this check
    job.has_dependents, job.result_until = false, nil
    T.update(job)
  elseif job then
    dropped = dropped + 1
    T.hput(KEY.result, seq, false)
    job.result, job.result_until, job.result_expired = false, nil, true
    T.update(job)
  end
end

for _, name in ipairs(call('ZRANGEBYSCORE', T.look(KEY.window), '-inf', now, 'LIMIT', 0, limit)) do
  T.hput(KEY.key, name, false)
  T.zput(KEY.window, name, false)
end

local asleep = call('HGETALL', KEY.asleep)
for i = 1, #asleep, 2 do
  local _, _, _, _, expires = unpacked(asleep[i + 1])
  if expires < server_time then
    remove_sleeper(asleep[i])
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', KEY.watching, '-inf', server_time, 'LIMIT', 0, 100)) do
  call('ZREM', KEY.watching, id)
  call('HDEL', KEY.watch, id)
end
return T.done({ retried, dropped, #results })
