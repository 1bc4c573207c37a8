-- fast_path/settle: the fast path of settle, for completions with valid leases of jobs without lane and dependents, in
-- queues that allow it (control.py). Returns receipts; or nil if it does not apply, and then nothing has changed.
-- Numbers that several commands use are converted to strings once, because each conversion costs more than the command.
-- Repeats Ledger.settle of domain/ledger.py; settle of domain/rules/transition.py; Step.finished of domain/rules/step.py.
local MOST_NEWS = 65536 -- limit of bytes of a job in the notification of its end

local function settle_fast(seqs, leases, durations, results)
  if call('EXISTS', P .. 'task') == 1 then
    return nil
  end
  local any_awaited = call('EXISTS', P .. 'awaited') == 1
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
  local places, queues_left, leavers, keys, owners = {}, {}, {}, {}, {}
  for i = 1, #seqs do
    local record, seq, name = records[i], seqs[i], names[i]
    if not record then
      return nil
    end
    local _, id, _, queue, task, _, _, keep_result, _, group, _, key, _, _, _, hook, _, generation, state, enqueued_at,
      available_at, n, _, attempt, started_at, worker, lease_id, _, _, _, _, rare, last_event
      = cmsgpack.unpack_limit(record, 40, 2)
    local packed_rare = '\192'
    if rare then
      packed_rare = expiry_of(rare)
    end
    if not packed_rare or hook or keep_result == 0 or not is_held(state, lease_id, leases[i])
      or any_awaited and call('SISMEMBER', P .. 'awaited', id) == 1 then
      return nil
    end
    if group then
      local n = #places + 1
      places[n], queues_left[n], leavers[n] = place_of(queue, group), queue, seq
    end
    if key then
      keys[#keys + 1], owners[#owners + 1] = queue .. ':' .. key, seq
    end
    local ended = queues[queue]
    if not ended then
      local settings = call('HGET', P .. 'settings', queue)
      settings = settings and unpacked(settings)
      if settings and not settings.fast_settle and not settings.limited_settle then
        return nil
      end
      ended = { count = 0, all = {}, finished = {}, queue_and_task = {}, is_limited = settings and settings.max_running }
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
    local queue_and_task, duration = ended.queue_and_task[task], durations[i]
    if not queue_and_task then
      queue_and_task = pack(queue, task)
      ended.queue_and_task[task] = queue_and_task
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
    events[i] = pack(id) .. queue_and_task .. generation .. n .. kind .. attempt .. '\0' .. pack(last_event) .. who
      .. pack(lease_id) .. (duration and small(duration) or '\192') .. '\192\192\192' .. pack(seq)
    written[2 * i - 1], written[2 * i] = fields[i], sub(record, 1, byte(record, 1) * 256 + byte(record, 2) + 2)
      .. generation .. '\169completed' .. times .. n .. '\194' .. attempt .. start .. '\192\192\192' .. moment
      .. result_until .. (result and '\195' or '\194') .. packed_rare .. pack(number)
    ids[i] = id
    local at, all, finished = 2 * ended.count, ended.all, ended.finished
    ended.count = ended.count + 1
    all[at + 1], all[at + 2] = format('%.0f', 2 ^ 50 + seq), name
    finished[at + 1], finished[at + 2] = instant, name
  end
  local left, freed = leave_lines(places, queues_left, leavers), freed_keys(keys, owners)
  if not left then
    return nil
  end
  each_part(names, 'ZREM', P .. 'lease')
  write_left(left)
  each_part(freed, 'HDEL', P .. 'key')
  each_part(written, 'HSET', P .. 'job', 2)
  each_part(kept, 'HSET', P .. 'result', 2)
  each_part(forgotten, 'ZADD', P .. 'results', 2)
  for queue, ended in pairs(queues) do
    each_part(ended.all, 'ZADD', P .. 'q:' .. queue, 2)
    each_part(ended.finished, 'ZADD', P .. 'fin:' .. queue, 2)
    add_to_queue(queue, 0, -ended.count, ended.count, -ended.count, 0)
  end
  push_events(events, first)
  call('HSET', P .. 'store', 'events', number)
  wake_for(left)
  for queue, ended in pairs(queues) do
    if ended.is_limited then -- there is room under `max_running` now
      wake(queue, nil, ended.count)
    end
  end
  notify_ended(ids, function(i)
    local spec, result = call('HGET', P .. 'spec', fields[i]), results[i] and ARGV[results[i]] or ''
    local id, record = ids[i], written[2 * i]
    if spec and #spec + #result <= MOST_NEWS then
      return 'n' .. struct.pack('>I4I4I4I8', #id, #record, #spec, seqs[i]) .. id .. record .. spec .. result
    end
    return nil
  end)
  return string.rep('O', #seqs)
end

if not repeated and args[2] and #args[2] <= 1000 then
  local receipts = settle_fast(unpack(args, 2, 5))
  if receipts then
    store_reply(receipts)
    return receipts
  end
end
