-- import_store: set the settings and totals of an exported store, unless that was done. Takes {keep_events,
-- {name, body, processed, died, taken, next_lane, rearm, tokens, tokens_at} per queue, {name, body, tokens, tokens_at} per
-- task, {queue, name, processed, died} per lane, {name, rev, mark, due_at or nil, body} per schedule, move}; a body is an index of
-- ARGV. Why the store is closed is in ARGV 5 and 6. Returns the number of new records, or -1 if the store is not the
-- target of this move.
-- Repeats _set_up of domain/rules/importing.py.
-- include lib/closing
local is_mine, closed = is_target(args[6])
if not is_mine then
  return -1
end
if closed.stage == 'importing' then
  return 0
end
local keep_events, queues, tasks, lanes, schedules = unpack(args, 1, 5)
call('HSET', KEY.store, 'keep_events', keep_events)
for _, item in ipairs(queues) do
  local name, body, rearm = item[1], ARGV[item[2]], item[7]
  T.hput(KEY.settings, name, body)
  local row = T.queue(name)
  row.processed, row.died, row.taken, row.next_lane, row.tokens, row.tokens_at
    = item[3], item[4], item[5], item[6], item[8], item[9]
  T.put_queue(row)
  if rearm then
    call('SADD', KEY.rearm, name)
  end
end
for _, item in ipairs(tasks) do
  local name, body, tokens, tokens_at = unpack(item, 1, 4)
  T.hput(P .. 'limits', name, ARGV[body])
  T.put_task({ name = name, running = 0, limits = unpacked(ARGV[body]), tokens = tokens, tokens_at = tokens_at })
end
for _, item in ipairs(lanes) do
  local queue, name, processed, died = unpack(item, 1, 4)
  T.put_line({ queue = queue, name = name, waiting = 0, live = 0, processed = processed, died = died })
end
for _, item in ipairs(schedules) do
  local name, rev, mark, due_at, body = unpack(item, 1, 5)
  T.hput(KEY.schedule, name, wide(rev) .. wide(mark) .. ARGV[body])
  T.zput(KEY.ticks, name, due_at or false)
end
write_closing(5)
T.flush()
return 1
