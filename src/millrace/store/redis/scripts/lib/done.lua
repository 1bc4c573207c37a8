-- done: write the changes of the step, wake the waiters, and store the reply for a repeated call.
function T.flush()
  if next(T.dirty) ~= nil then
    T.index()
  end
  if #T.feed > 0 then
    push_events(T.feed, T.loaded_counters.events - #T.feed + 1)
    T.feed = {}
  end
  T.write_queues()
  if next(T.changed_lines) ~= nil or next(T.changed_tasks) ~= nil then
    T.write_lines()
    T.write_tasks()
  end
  if next(T.combos) ~= nil then
    T.write_combos()
  end
  for key, changes in pairs(T.zsets) do
    write_zset(key, changes)
  end
  for key, changes in pairs(T.hashes) do
    write_hash(key, changes)
  end
  local counters = T.loaded_counters
  if counters then
    call('HSET', KEY.store, 'seq', counters.seq, 'events', counters.events, 'trimmed', counters.trimmed)
  end
  T.zsets, T.hashes = {}, {}
end

function T.done(answer, memo)
  T.flush()
  for _, hint in pairs(T.wakes) do
    wake(hint.queue, hint.task, hint.jobs)
  end
  local ids = {}
  for id in pairs(T.ended) do
    ids[#ids + 1] = id
  end
  notify_ended(ids)
  if ARGV[2] ~= '' then
    store_reply(memo or answer)
  end
  return answer
end
