-- enqueue: all of these specs, or a refusal and nothing. Asks {specs}; answers one list per spec, or {refusal}.
if repeated then
  return repeated
end
local answers, refused = A.attempt(A.enqueue, A.specs(asked[1]), false)
if refused then
  return { 'refused', refused }
end
return T.done(answers)
