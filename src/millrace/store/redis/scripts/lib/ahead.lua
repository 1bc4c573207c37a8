-- ahead: counts the jobs that run before a waiting job, up to a limit. Reads only indexes.

-- How many entries of an index come before (score, name). Entries with the same score are read to count them.
local function before(key, score, name, most)
  local rank = call('ZRANK', key, name)
  if rank and tonumber(call('ZSCORE', key, name)) == score then
    return rank
  end
  local count = call('ZCOUNT', key, '-inf', '(' .. format('%.0f', score))
  for _, other in ipairs(call('ZRANGEBYSCORE', key, score, score, 'LIMIT', 0, most)) do
    if other < name then
      count = count + 1
    end
  end
  return count
end

function A.ahead(job, most)
  local name, line_name = member(job.seq), T.line_name(job)
  if line_name then
    local line = T.line(job.queue, line_name)
    local held = line and line.holder and line.holder ~= job.seq and 1 or 0
    local members = T.look(P .. 'm:' .. job.queue .. ':' .. line_name)
    return min(most, held + before(members, 15 - job.priority, name, most))
  end
  local count, starts = 0, max(now, job.available_at)
  for _, combo in ipairs(T.combos_of(job.queue)) do
    if combo.priority > job.priority then
      count = count + min(most, call('ZCOUNT', T.look(combo.key), '-inf', starts))
    elseif combo.priority == job.priority then
      count = count + min(most, before(T.look(combo.key), job.available_at, name, most))
    end
  end
  return min(most, count)
end
