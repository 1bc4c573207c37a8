-- plain settle: the usual settle, cut short. Completions, under leases that hold, of jobs in no line, without a key and
-- without dependents, in queues that do nothing about them. Answers receipts, or nil, and then nothing has changed.
-- What is handed to several commands is made a text once: each would do it anew, and that costs more than the command.
local MOST_NEWS = 65536 -- bytes of a job that are sent along with the news of its end

local function settle_plainly(seqs, leases, durations, results)
  if call('EXISTS', P .. 'task', P .. 'awaited') > 0 then
    return nil
  end
  local fields, names = {}, {}
  for i = 1, #seqs do
    names[i], fields[i] = texts_of(seqs[i])
  end
  local records = call('HMGET', P .. 'job', unpack(fields))
  local number, queues, untils = tonumber(call('HGET', P .. 'store', 'events') or 0), {}, {}
  local instant = format('%.0f', now)
  local first, events, written, kept, forgotten, ids, until_texts = number + 1, {}, {}, {}, {}, {}, {}
  local moment, kind = pack(now), pack('completed', now, 'completed')
  local times, times_of, times_until, start, start_of, who, who_of = nil, nil, nil, nil, nil, nil, nil
  for i = 1, #seqs do
    local record, seq, name = records[i], seqs[i], names[i]
    if not record then
      return nil
    end
    local _, id, _, queue, task, _, _, keep_result, _, group, _, key, _, _, _, hook, _, generation, state, enqueued_at,
      available_at, n, _, attempt, started_at, worker, lease_id, _, _, _, _, rare, last_event
      = cmsgpack.unpack_limit(record, 40, 2)
    if rare or group or key or hook or state ~= 'running' or lease_id ~= leases[i] or keep_result == 0 then
      return nil
    end
    local ended = queues[queue]
    if not ended then
      local settings = call('HGET', P .. 'settings', queue)
      settings = settings and unpacked(settings)
      if settings and (settings.max_running or settings.on_empty or settings.keep_completed == 0) then
        return nil
      end
      ended = { count = 0, all = {}, finished = {}, told_of = {} }
      queues[queue] = ended
    end
    number, n = number + 1, n + 1
    local result, result_until = results[i] and ARGV[results[i]], '\192'
    if result then
      kept[#kept + 1], kept[#kept + 2] = fields[i], result
      if keep_result then
        if not untils[keep_result] then
          untils[keep_result], until_texts[keep_result] = pack(now + keep_result), format('%.0f', now + keep_result)
        end
        result_until = untils[keep_result]
        forgotten[#forgotten + 1], forgotten[#forgotten + 2] = until_texts[keep_result], name
      end
    end
    local told_of, duration = ended.told_of[task], durations[i]
    if not told_of then
      told_of = pack(queue, task)
      ended.told_of[task] = told_of
    end
    if times_of ~= enqueued_at or times_until ~= available_at then
      times, times_of, times_until = pack(enqueued_at, available_at), enqueued_at, available_at
    end
    if start_of ~= started_at then
      start, start_of = pack(started_at), started_at
    end
    if who_of ~= worker then
      who, who_of = pack(worker), worker
    end
    generation, n, attempt = small(generation), small(n), small(attempt)
    -- In the order of lib/events.lua and lib/jobs.lua.
    events[i] = pack(id) .. told_of .. generation .. n .. kind .. attempt .. '\0' .. pack(last_event) .. who
      .. pack(lease_id) .. (duration and small(duration) or '\192') .. '\192\192\192' .. pack(seq)
    written[2 * i - 1], written[2 * i] = fields[i], sub(record, 1, byte(record, 1) * 256 + byte(record, 2) + 2)
      .. generation .. '\169completed' .. times .. n .. '\194' .. attempt .. start .. '\192\192\192' .. moment
      .. result_until .. (result and '\195' or '\194') .. '\192' .. pack(number)
    ids[i] = id
    local at, all, finished = 2 * ended.count, ended.all, ended.finished
    ended.count = ended.count + 1
    all[at + 1], all[at + 2] = format('%.0f', 2 ^ 50 + seq), name
    finished[at + 1], finished[at + 2] = instant, name
  end
  each_part(names, 'ZREM', P .. 'lease')
  each_part(written, 'HSET', P .. 'job', 2)
  each_part(kept, 'HSET', P .. 'result', 2)
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
  tell_of_ends(ids, function(i)
    local spec, result = call('HGET', P .. 'spec', fields[i]), results[i] and ARGV[results[i]] or ''
    local id, record = ids[i], written[2 * i]
    if spec and #spec + #result <= MOST_NEWS then
      return 'n' .. struct.pack('>I4I4I4I8', #id, #record, #spec, seqs[i]) .. id .. record .. spec .. result
    end
    return nil
  end)
  return string.rep('O', #seqs)
end

if not repeated and asked[2] and #asked[2] <= 1000 then
  local receipts = settle_plainly(unpack(asked, 2, 5))
  if receipts then
    call('SET', MEMO, pack(tonumber(ARGV[2]), receipts), 'EX', REMEMBERED)
    return receipts
  end
end
