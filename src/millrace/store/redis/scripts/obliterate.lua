-- obliterate: delete up to `limit` jobs of a queue, including running ones. Takes {queue, limit}; returns how many.
-- Repeats obliterate of domain/rules/operate.py.
if repeated then
  return repeated
end
call('DEL', P .. 'none')
local queue, limit = args[1], args[2]
S.wiped = queue
local seqs = W.merged(W.sources({ queue }, { 0, 1, 2, 3 }), 0, 2 ^ 49, false, limit)
T.prefetch(seqs)
for _, seq in ipairs(seqs) do
  local job = T.by_seq(seq)
  if job and CLASS[job.state] == 0 then
    local was = job.state
    if was == 'running' then
      T.wake(CANCELS, job.worker, 1)
    end
    X.cancel(job, 'obliterated')
    S.finished(job, was)
  end
end
S.carry_out()
for _, seq in ipairs(seqs) do
  local job = T.by_seq(seq)
  if job and CLASS[job.state] > 0 then
    S.remove(job, 'pruned', 'obliterated')
  end
end
return T.done(#seqs)
