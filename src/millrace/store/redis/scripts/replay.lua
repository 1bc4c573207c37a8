-- replay: bring finished jobs back. Asks {ids}; answers words.
if repeated then
  return repeated
end
T.prefetch_ids(asked[1])
local answers = {}
for i, id in ipairs(asked[1]) do
  answers[i] = U.replay(id)
end
return T.done(answers)
