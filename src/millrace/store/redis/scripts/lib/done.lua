-- done: write what the step has changed, wake who waits for it, and keep the answer for whoever asks again.
function T.flush()
  if next(T.dirty) ~= nil then
    T.index()
  end
  if #T.feed > 0 then
    push_events(T.feed, T.at_hand.events - #T.feed + 1)
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
  if T.at_hand then
    call('HSET', KEY.store, 'seq', T.at_hand.seq, 'events', T.at_hand.events, 'trimmed', T.at_hand.trimmed)
  end
  T.zsets, T.hashes = {}, {}
end

function T.done(answer, memo)
  T.flush()
  for queue, jobs in pairs(T.stirred) do
    wake(queue, jobs)
  end
  local ids = {}
  for id in pairs(T.ended) do
    ids[#ids + 1] = id
  end
  tell_of_ends(ids)
  if ARGV[2] ~= '' then
    call('SET', MEMO, pack(tonumber(ARGV[2]), memo or answer), 'EX', REMEMBERED)
  end
  return answer
end
