-- lanes: a pool's lanes. Takes {queue}; returns {lane, waiting, running, holder or -1, processed, died, paused} each.
-- Repeats lanes of domain/rules/operate.py.
local settings, answers, paused = T.queue(args[1]).settings, {}, {}
for _, lane in ipairs(settings.paused_lanes) do
  paused[lane] = true
end
for lane = 0, (settings.lanes or 0) - 1 do
  local line = T.line(args[1], 'l:' .. lane) or { waiting = 0, live = 0, processed = 0, died = 0 }
  answers[#answers + 1] = { lane, line.waiting, line.live - line.waiting, line.holder or -1, line.processed,
    line.died, paused[lane] and 1 or 0 }
end
return answers
