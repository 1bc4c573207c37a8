-- plain settle: the usual settle, cut short. Completions, under leases that hold, of jobs in no line, without a key and
-- without dependents, in queues that do nothing about them. Answers receipts, or nil, and then nothing has changed.
local function settle_plainly(items)
  if call('EXISTS', P .. 'task') == 1 or call('EXISTS', P .. 'awaited') == 1 then
    return nil
  end
  local seqs, seen = {}, {}
  for i = 1, #items do
    local item = items[i]
    if item[3] ~= 'complete' or item[6] or item[7] or item[8] > 0 or item[9] > 0 or item[11] or seen[item[1]] then
      return nil
    end
    seqs[i], seen[item[1]] = item[1], true
  end
  local records = call('HMGET', P .. 'job', unpack(seqs))
  local kept = call('HMGET', P .. 'store', 'events', 'seq')
  local number, queues = tonumber(kept[1] or 0), {}
  local first, events, written, results, forgotten, names, ids = number + 1, {}, {}, {}, {}, {}, {}
  for i = 1, #seqs do
    local record, seq, item = records[i], seqs[i], items[i]
    if not record then
      return nil
    end
    local _, id, _, queue, task, _, _, keep_result, _, group, _, key, _, _, _, hook, _, generation, state, enqueued_at,
      available_at, n, _, attempt, started_at, worker, lease_id, _, _, _, _, rare, last_event
      = cmsgpack.unpack_limit(record, 40, 2)
    if rare or group or key or hook or state ~= 'running' or lease_id ~= item[2] or keep_result == 0 then
      return nil
    end
    local ended = queues[queue]
    if not ended then
      local settings = call('HGET', P .. 'settings', queue)
      settings = settings and unpacked(settings)
      if settings and (settings.max_running or settings.on_empty or settings.keep_completed == 0) then
        return nil
      end
      ended = { count = 0, all = {}, finished = {} }
      queues[queue] = ended
    end
    number, n = number + 1, n + 1
    events[i] = '\220\0\18' .. pack(id, queue, task, generation, n, 'completed', now, 'completed', attempt, 0,
      last_event, worker, lease_id, item[10], nil, nil, nil, seq)
    local name, result, result_until = format('%016.0f', seq), item[5] and ARGV[item[5]], nil
    if result then
      results[#results + 1], results[#results + 2] = seq, result
      if keep_result then
        result_until = now + keep_result
        forgotten[#forgotten + 1], forgotten[#forgotten + 2] = result_until, name
      end
    end
    written[2 * i - 1], written[2 * i] = seq, sub(record, 1, byte(record, 1) * 256 + byte(record, 2) + 2)
      .. pack(generation, 'completed', enqueued_at, available_at, n, false, attempt, started_at, nil, nil, nil, now,
        result_until, result ~= nil, nil, number)
    names[i], ids[i] = name, id
    local all, finished = ended.all, ended.finished
    ended.count = ended.count + 1
    all[#all + 1], all[#all + 2] = 2 ^ 50 + seq, name
    finished[#finished + 1], finished[#finished + 2] = now, name
  end
  each_part(names, 'ZREM', P .. 'lease')
  each_part(written, 'HSET', P .. 'job', 2)
  each_part(results, 'HSET', P .. 'result', 2)
  each_part(forgotten, 'ZADD', P .. 'results', 2)
  for queue, ended in pairs(queues) do
    each_part(ended.all, 'ZADD', P .. 'q:' .. queue, 2)
    each_part(ended.finished, 'ZADD', P .. 'fin:' .. queue, 2)
    local waiting, running, completed, dead, cancelled, blocked, archived, archived_dead, live, processed, died, taken,
      next_lane, tokens, tokens_at = unpacked(call('HGET', P .. 'queue', queue))
    call('HSET', P .. 'queue', queue, pack(waiting, running - ended.count, completed + ended.count, dead, cancelled,
      blocked, archived, archived_dead, live - ended.count, processed + ended.count, died, taken, next_lane, tokens,
      tokens_at))
  end
  push_events(events, first)
  call('HSET', P .. 'store', 'events', number)
  tell_of_ends(ids)
  return string.rep('O', #seqs)
end

if not repeated and #asked[1] <= 1000 then
  local receipts = settle_plainly(asked[1])
  if receipts then
    call('SET', MEMO, pack(tonumber(ARGV[2]), receipts), 'EX', REMEMBERED)
    return receipts
  end
end
