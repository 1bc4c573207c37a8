-- upkeep_rest: dead jobs that come back by themselves, results and windows whose time is over, sleepers that are gone.
-- Asks {limit}; answers {retried, results}.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local limit = asked[1]
local retried = 0
for _, seq in ipairs(U.due(KEY.retry, now, limit)) do
  local job = T.by_seq(seq)
  if job and job.state == 'dead' then
    job.auto_retries = job.auto_retries + 1
    if U.replay(job.id, 'auto_retry') == 'replayed' then
      retried = retried + 1
    else -- its key is held by another job now: try again later, within the same number of tries
      local settings = T.queue(job.queue).settings
      local again = job.auto_retries < settings.auto_retries
      job.next_retry_at = again and now + settings.auto_retry_delay or nil
      T.update(job)
    end
  end
end

local results = U.due(KEY.results, now, limit)
for _, seq in ipairs(results) do
  local job = T.by_seq(seq)
  if job then
    T.hput(KEY.result, seq, false)
    job.result, job.result_until, job.result_expired = false, nil, true
    T.update(job)
  end
end

for _, name in ipairs(call('ZRANGEBYSCORE', T.look(KEY.window), '-inf', now, 'LIMIT', 0, limit)) do
  T.hput(KEY.key, name, false)
  T.zput(KEY.window, name, false)
end

for _, queue in ipairs(W.queues()) do
  local key = P .. 'idle:' .. queue
  for _, name in ipairs(call('ZRANGEBYSCORE', key, '-inf', '(' .. format('%.0f', server_time), 'LIMIT', 0, 100)) do
    call('ZREM', key, name)
    call('HDEL', KEY.asleep, name)
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', KEY.watching, '-inf', server_time, 'LIMIT', 0, 100)) do
  call('ZREM', KEY.watching, id)
  call('HDEL', KEY.watch, id)
end
return T.done({ retried, #results })
