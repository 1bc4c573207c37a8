-- export_jobs: the next jobs in order of seq. Takes {after, limit}; returns {rows, {events, waits_for, hold or false,
-- {completed, died} in its line} per job}.
-- Repeats _job_record of domain/rules/exporting.py.
local seqs = W.merged(W.sources(W.queues(), { 0, 1, 2, 3 }), args[1], 2 ^ 49, false, args[2])
T.prefetch(seqs)
local jobs, beside = {}, {}
for _, seq in ipairs(seqs) do
  local job = T.by_seq(seq)
  local hold, ended = job.key and T.hold(job.queue, job.key), { 0, 0 }
  local line = job.state == 'waiting' and T.line_name(job)
  line = line and T.line(job.queue, line)
  if line then
    ended = { line.processed, line.died }
  end
  jobs[#jobs + 1] = job
  beside[#beside + 1] = { T.events_back(job.last_event), job.blocked > 0 and T.parents(seq) or {},
    hold and hold.seq == seq and { hold.scope, hold.ends or false } or false, ended }
end
return { T.rows_of(jobs), beside }
